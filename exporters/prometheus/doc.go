// Package prometheus serves metrics to a Prometheus server: OpenTelemetry's
// Prometheus exporter over a registry of its own, with OpenMetrics when the
// scraper asks for it, and beside it a collector for histograms that have classic
// and native buckets in one. It registers nothing globally.
package prometheus
