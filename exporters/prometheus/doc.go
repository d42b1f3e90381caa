// Package prometheus serves metrics to a Prometheus server: OpenTelemetry's
// Prometheus exporter over a registry of its own, with OpenMetrics when the
// scraper asks for it. It registers nothing globally.
package prometheus
