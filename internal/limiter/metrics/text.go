package metrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// TextType is the content type of Prometheus's text format.
const TextType = "text/plain; version=0.0.4; charset=utf-8"

var (
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)

// WriteText writes metrics in Prometheus's text format. The error is that of w.
func WriteText(w io.Writer, all []Metric) error {
	b := bufio.NewWriter(w)
	name := ""
	for i := range all {
		m := &all[i]
		if m.Name != name {
			name = m.Name
			fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, helpEscapes.Replace(m.Help), name, m.Kind)
		}
		if m.Kind != Histogram {
			writeSample(b, name, m.Labels, m.Value)
			continue
		}
		for _, bucket := range m.Buckets {
			writeBucket(b, m, bucket)
		}
		writeBucket(b, m, Bucket{math.Inf(1), m.Count})
		writeSample(b, name+"_sum", m.Labels, m.Sum)
		writeSample(b, name+"_count", m.Labels, float64(m.Count))
	}
	return b.Flush()
}

func writeBucket(b *bufio.Writer, m *Metric, bucket Bucket) {
	labels := append(m.Labels[:len(m.Labels):len(m.Labels)], Label{"le", number(bucket.UpTo)})
	writeSample(b, m.Name+"_bucket", labels, float64(bucket.Count))
}

// number spells a number as Prometheus does: "+Inf" for infinity.
func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func writeSample(b *bufio.Writer, name string, labels []Label, value float64) {
	// A failed write of a bufio.Writer is reported by Flush.
	_, _ = b.WriteString(name)
	for i, l := range labels {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		_, _ = b.WriteString(sep + l.Name + `="` + labelEscapes.Replace(strings.ToValidUTF8(l.Value, "\uFFFD")) + `"`)
	}
	if len(labels) > 0 {
		_ = b.WriteByte('}')
	}
	_, _ = b.WriteString(" " + number(value) + "\n")
}
