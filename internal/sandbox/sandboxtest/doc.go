// Package sandboxtest is the conformance suite that every sandbox driver
// passes, and the helpers that its tests share.
package sandboxtest
