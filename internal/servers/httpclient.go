package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// maxAnswer bounds an answer that is read, in bytes.
const maxAnswer = 256 << 20

// StatusError is an answer other than 200.
type StatusError struct {
	URL    string
	Status int
	Text   string // the beginning of its body
}

// Error says all of it in one line.
func (e *StatusError) Error() string {
	return fmt.Sprintf("GET %s: status %d: %.300q", e.URL, e.Status, e.Text)
}

// Get returns the body of a URL. Headers are set in pairs of name and value. An
// answer other than 200 is a *StatusError.
func Get(ctx context.Context, url string, headers ...string) ([]byte, error) {
	return do(ctx, http.MethodGet, url, nil, headers...)
}

// GetJSON decodes a URL's body into v; a nil v leaves it.
func GetJSON(ctx context.Context, url string, v any) error {
	b, err := Get(ctx, url)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %s: %w", url, err)
	}
	return nil
}

// PostJSON posts a JSON text.
func PostJSON(ctx context.Context, url string, body []byte) error {
	_, err := do(ctx, http.MethodPost, url, body, "Content-Type", "application/json")
	return err
}

func do(ctx context.Context, method, url string, body []byte, headers ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	// One connection a request: nothing is left open when a test ends.
	req.Close = true
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	if r.StatusCode != http.StatusOK {
		return nil, &StatusError{URL: url, Status: r.StatusCode, Text: string(b)}
	}
	return b, nil
}
