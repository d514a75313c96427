// Some words that do not say what the package is for.
package nodoc
