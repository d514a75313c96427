// Package archtest holds the tests of the house rules: which package may import
// which, that every package says what it is for, that tests do not sleep, and
// which modules each binary is made of. It reads the source and has no code of
// its own to import.
//
// When a rule is in the way, change the rule here and say why, in the same
// commit; do not go around it.
package archtest
