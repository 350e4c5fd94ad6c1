package devcells

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const endpointFile = "endpoint.json"

// Endpoint is where the process that has a folder open answers operators' calls.
type Endpoint struct {
	URL string `json:"url"`
	// names the folder as that process has it open, for package audit/livetables
	Of        string `json:"of"`
	TokenFile string `json:"token_file,omitempty"` // holds the token that calls carry; "" if none is wanted
}

// ErrNoEndpoint is wrapped by the error of FindEndpoint where no process has said where it answers.
var ErrNoEndpoint = errors.New("no process says where it answers")

// FindEndpoint reads where the process that has the folder open answers. Where none has, what it returns may be that of
// one which was killed.
func FindEndpoint(folder string) (Endpoint, error) {
	file := filepath.Join(folder, endpointFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Endpoint{}, fmt.Errorf("%s: %w", folder, ErrNoEndpoint)
	}
	var e Endpoint
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err == nil && (e.URL == "" || e.Of == "") {
		err = errors.New("url or of is missing")
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("%s: %w", file, err)
	}
	return e, nil
}

// AnswersAt has others on this machine find out where Operate is served, until Close, and which file holds the token
// for it. Of a temporary folder nobody is told.
func (p *Plane) AnswersAt(url, tokenFile string) error {
	if p.temporary {
		return nil
	}
	text, err := json.Marshal(Endpoint{url, p.of, tokenFile})
	if err != nil {
		return err
	}
	file := filepath.Join(p.folder, endpointFile)
	if err := os.WriteFile(file+".new", append(text, '\n'), endpointMode); err != nil {
		return fmt.Errorf("say where operators are answered: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("say where operators are answered: %w", err)
	}
	return nil
}

const endpointMode = 0o600

// answersNowhere takes back AnswersAt, also that of a process which was killed. The folder is this one's.
func (p *Plane) answersNowhere() error {
	err := os.Remove(filepath.Join(p.folder, endpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
