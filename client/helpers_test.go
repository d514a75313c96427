package client_test

import (
	"os"
	"strconv"
)

// scaled is small, or with WEFT_SOAK=1 the size of the case.
func scaled[T any](small, full T) T {
	if os.Getenv("WEFT_SOAK") != "" {
		return full
	}
	return small
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
