// Package runfile is the note that a server started by the user leaves for the
// user's other programs: where it listens and which token it asks for.
//
// There is one file per port, coordinator-<port>.json, mode 0600, in a directory
// that only the user can write: $XDG_RUNTIME_DIR/weft, or weft-<uid> in the
// directory for temporary files. Whoever could write it could send the user's
// commands to a server of theirs; whoever could read it has the token. So a
// directory or file that belongs to somebody else or that others can write (a
// file: read) is refused, not mended.
//
// A file counts while the process that wrote it lives, which its id, its start
// time and the boot it started in say together: an id alone is soon recycled.
package runfile
