//go:build tools

// Package coredns pins the DNS server of the conformance cluster.
package coredns

import (
	_ "github.com/coredns/coredns"
)
