package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// The signals as they stand in variables' names.
const (
	signalTraces  = "TRACES"
	signalMetrics = "METRICS"
)

// protocol is how OTLP travels.
type protocol string

const (
	protocolGRPC protocol = "grpc"
	protocolHTTP protocol = "http/protobuf"
)

// setting is the value of the signal's own variable, else of the general one, and
// which of them it was; "" when neither is set.
func setting(signal, what string, getenv Getenv) (value, variable string) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_" + what, "OTEL_EXPORTER_OTLP_" + what} {
		if v := getenv(name); v != "" {
			return v, name
		}
	}
	return "", ""
}

// protocolOf is the protocol that the variables ask for, grpc by default. One that
// is not spoken here is refused, rather than another one spoken.
func protocolOf(signal string, getenv Getenv) (protocol, error) {
	v, name := setting(signal, "PROTOCOL", getenv)
	switch p := protocol(v); p {
	case "":
		return protocolGRPC, nil
	case protocolGRPC, protocolHTTP:
		return p, nil
	}
	return "", fmt.Errorf("%s=%q: want %s or %s", name, v, protocolGRPC, protocolHTTP)
}

// defaultTimeout is that of the specification.
const defaultTimeout = 10 * time.Second

// timeoutOf is how long a request may take.
func timeoutOf(signal string, getenv Getenv) (time.Duration, error) {
	v, name := setting(signal, "TIMEOUT", getenv)
	if v == "" {
		return defaultTimeout, nil
	}
	ms, err := strconv.ParseInt(v, 10, 32)
	if err != nil || ms < 0 {
		return 0, fmt.Errorf("%s=%q: want whole milliseconds from 0", name, v)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// tlsConfig is what the variables say of certificates, nil when they say nothing.
func tlsConfig(signal string, getenv Getenv) (*tls.Config, error) {
	ca, caName := setting(signal, "CERTIFICATE", getenv)
	cert, certName := setting(signal, "CLIENT_CERTIFICATE", getenv)
	key, keyName := setting(signal, "CLIENT_KEY", getenv)
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err == nil {
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				err = errors.New(ca + " has no certificate in PEM")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", caName, err)
		}
	}
	switch {
	case cert != "" && key != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certName, keyName, err)
		}
		c.Certificates = []tls.Certificate{pair}
	case cert != "":
		return nil, fmt.Errorf("%s is set, OTEL_EXPORTER_OTLP_CLIENT_KEY is not: a client's certificate needs both", certName)
	case key != "":
		return nil, fmt.Errorf("%s is set, OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is not: a client's certificate needs both", keyName)
	}
	return c, nil
}
