package killswitch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// MaxDocumentBytes is how large a document may be.
const MaxDocumentBytes = 4 << 10

// Parse reads a document. Nothing may be in it but one member "mode", spelled so. The error names the place and repeats
// nothing of the document.
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
		return limit.Enforce, fmt.Errorf("byte %d: the document goes on after its end", d.InputOffset())
	}
	return mode, nil
}

// object reads the members. Go's own decoding into a struct would take "Mode" for "mode", and the last of two.
func object(d *json.Decoder) (mode limit.Mode, found bool, err error) {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return mode, false, or(err, errors.New("the document is no object"))
	}
	for d.More() {
		name, err := d.Token()
		switch {
		case err != nil:
			return mode, false, err
		case name != "mode":
			return mode, false, fmt.Errorf(`byte %d: a member that is not "mode"`, d.InputOffset())
		case found:
			return mode, false, fmt.Errorf(`byte %d: "mode" for the second time`, d.InputOffset())
		}
		value, err := d.Token()
		if err != nil {
			return mode, false, err
		}
		text, _ := value.(string) // anything else is no mode
		if mode, found = limit.ParseMode(text); !found {
			return limit.Enforce, false, fmt.Errorf(`byte %d: "mode" is to be "enforce", "shadow" or "off"`,
				d.InputOffset())
		}
	}
	_, err = d.Token() // its end
	return mode, found, err
}

func or(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// readable is an error without a character of the document, which the decoder's own have.
func readable(err error, d *json.Decoder) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("byte %d: the document is not JSON", d.InputOffset())
	}
	return err
}
