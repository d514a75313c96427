// Package gate is documented twice, of which this is the second.
package gate
