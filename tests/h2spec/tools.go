//go:build tools

package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
