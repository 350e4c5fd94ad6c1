package cost

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

// MaxFileBytes is the largest size of a deployment file.
const MaxFileBytes = 1 << 20

// ReadDeployment reads the settings of a deployment file that change the bill. It returns them as values of the
// command's flags, by the names of the flags, and leaves out the flags that are given on the command line. A bill is
// for cells of one kind: cells that differ in a setting whose flag is not given are an error. ReadDeployment checks
// only what it reads; `make synth` checks the rest of the file.
func ReadDeployment(name string, data []byte, given func(flag string) bool) (map[string]string, error) {
	r := &deploymentReader{configfile.Reader{MaxBytes: MaxFileBytes}}
	document := r.Open(configyaml.Source(name, data), "it needs control and cells")
	if document.Root == nil {
		return nil, r.Err()
	}
	root, _ := r.Object(value{Doc: document, Node: document.Root}, deploymentSchema)
	control := r.object(root, "control")
	flags := map[string]string{
		"anchors":       r.boolean(r.object(control, "audit"), "anchors", false),
		"platform-logs": r.boolean(control, "platformLogs", true),
		"dashboard":     r.boolean(root, "dashboards", false),
	}
	if v, ok := control.Get("canaryMinutes"); ok {
		minutes, _ := r.Integer(v, 1, 24*60)
		flags["canary"] = strconv.FormatInt(minutes, 10) + "m"
	}
	var cells []value
	if v, ok := r.Required(root, "cells", "the cells to pay for"); ok {
		cells, _ = r.List(v, "cells")
	}
	flags["cells"] = strconv.Itoa(len(cells))
	for i, v := range cells {
		cell := r.cell(v)
		for _, flag := range slices.Sorted(maps.Keys(cell)) {
			if before, ok := flags[flag]; i > 0 && ok && before != cell[flag] && !given(flag) {
				r.Problem(v, "%s is %s, and %s in a cell before: a bill is for cells of one kind, so give --%s", flag,
					cell[flag], before, flag)
			}
		}
		maps.Copy(flags, cell)
	}
	maps.DeleteFunc(flags, func(flag, _ string) bool { return given(flag) })
	return flags, r.Err()
}

type deploymentReader struct{ configfile.Reader }

// value is a node with its path in the file.
type value = configfile.Value

// deploymentSchema allows any keys: most of them do not change the bill.
var deploymentSchema = &configfile.Schema{What: "a part of a deployment file"}

// object returns the object at a key; without keys if there is none.
func (r *deploymentReader) object(o configfile.Object, key string) (inner configfile.Object) {
	if v, ok := o.Get(key); ok {
		inner, _ = r.Object(v, deploymentSchema)
	}
	return inner
}

func (r *deploymentReader) boolean(o configfile.Object, key string, otherwise bool) string {
	if v, ok := o.Get(key); ok {
		otherwise, _ = r.Boolean(v)
	}
	return strconv.FormatBool(otherwise)
}

func (r *deploymentReader) text(o configfile.Object, key, otherwise string) string {
	if v, ok := o.Get(key); ok {
		otherwise, _ = r.Text(v)
	}
	return otherwise
}

// cell returns the flags that describe a cell.
func (r *deploymentReader) cell(v value) map[string]string {
	o, _ := r.Object(v, deploymentSchema)
	flags := map[string]string{
		"profile": r.text(o, "profile", string(Small)), "leases": r.boolean(o, "leases", true),
		"nat": "0",
	}
	if region, ok := r.Required(o, "region", "whose prices hold"); ok {
		flags["region"], _ = r.Text(region)
	}
	if flags["profile"] == string(Full) {
		flags["node"] = r.text(r.object(o, "cache"), "node", NewWorkload(0).Node)
		network := r.object(o, "network")
		if r.text(network, "egress", "") == "nat" {
			zones := int64(endpointZones)
			if n, ok := network.Get("zones"); ok {
				zones, _ = r.Integer(n, 1, MaxNAT)
			}
			flags["nat"] = fmt.Sprint(zones) // one in each zone
		}
	}
	return flags
}
