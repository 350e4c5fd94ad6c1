package killswitch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// MaxDocumentBytes is the largest size of a document.
const MaxDocumentBytes = 4 << 10

// Parse reads a document. It must have exactly one member, "mode". The error names the place and contains nothing of
// the document.
func Parse(document []byte) (limit.Mode, error) {
	if len(document) > MaxDocumentBytes {
		return limit.Enforce, fmt.Errorf("the document has %d bytes, want at most %d", len(document), MaxDocumentBytes)
	}
	if len(bytes.TrimSpace(document)) == 0 {
		return limit.Enforce, errors.New("the document is empty")
	}
	d := json.NewDecoder(bytes.NewReader(document))
	mode, found, err := object(d)
	if err != nil {
		return limit.Enforce, readable(err, d)
	}
	if !found {
		return limit.Enforce, errors.New(`the document has no "mode"`)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return limit.Enforce, fmt.Errorf("byte %d: text follows the document", d.InputOffset())
	}
	return mode, nil
}

// object reads the members. Decoding into a struct would accept "Mode" for "mode", and the last of two members.
func object(d *json.Decoder) (mode limit.Mode, found bool, err error) {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return mode, false, or(err, errors.New("the document is not an object"))
	}
	for d.More() {
		name, err := d.Token()
		switch {
		case err != nil:
			return mode, false, err
		case name != "mode":
			return mode, false, fmt.Errorf(`byte %d: a member that is not "mode"`, d.InputOffset())
		case found:
			return mode, false, fmt.Errorf(`byte %d: "mode" is there twice`, d.InputOffset())
		}
		value, err := d.Token()
		if err != nil {
			return mode, false, err
		}
		text, _ := value.(string) // any other type is not a mode
		if mode, found = limit.ParseMode(text); !found {
			return limit.Enforce, false, fmt.Errorf(`byte %d: "mode" must be "enforce", "shadow" or "off"`,
				d.InputOffset())
		}
	}
	_, err = d.Token() // the closing brace
	return mode, found, err
}

func or(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// readable returns an error that contains no character of the document, unlike the decoder's own errors.
func readable(err error, d *json.Decoder) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("byte %d: the document is not JSON", d.InputOffset())
	}
	return err
}
