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

// Endpoint says where the process that has a data folder open answers operators' calls.
type Endpoint struct {
	URL string `json:"url"`
	// Of is an id of the open folder. By it, a caller notices if the process that answers has another folder open.
	Of        string `json:"of"`
	TokenFile string `json:"token_file,omitempty"` // file of the token that calls must carry; "" if they need none
}

// ErrNoEndpoint is wrapped by the error of FindEndpoint if no process has written its endpoint to the folder.
var ErrNoEndpoint = errors.New("the folder names no process that answers operators' calls")

// FindEndpoint reads the endpoint of the process that has the folder open. If no process has it open, FindEndpoint may
// return the endpoint of one that was killed. As Open does, it refuses a folder that another user can have written.
func FindEndpoint(folder string) (Endpoint, error) {
	if err := checkOwners(folder); err != nil {
		return Endpoint{}, err
	}
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

// AnswersAt writes the URL at which Operate is served, and the file of its token, to the folder, where FindEndpoint
// reads them. Close removes them. It writes nothing to a temporary folder.
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

// removeEndpoint removes the file that AnswersAt wrote, in this process or in an earlier one that was killed. This
// process must have the folder open.
func (p *Plane) removeEndpoint() error {
	err := os.Remove(filepath.Join(p.folder, endpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
