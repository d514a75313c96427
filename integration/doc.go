// Package integration builds the real binaries and runs them as a user would.
//
// Every test has a directory of its own for home, state, runtime and temporary
// files, so nothing of the user's is touched and whatever is left can be found:
// a process whose working directory is below it, or a file.
//
// Sizes are small by default; WEFT_SOAK=1 runs them in full.
package integration
