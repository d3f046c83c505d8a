//go:build tools

// Package tools pins the Kubernetes commands that the end-to-end tests run against.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
