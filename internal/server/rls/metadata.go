package rls

import (
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadata makes the dynamic metadata of an answer: the request, and the metadata of the rules that do not deny.
func (c *call) metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{"domain": structpb.NewStringValue(c.request.GetDomain())}
	var descriptors []*structpb.Value
	for _, d := range c.request.GetDescriptors() {
		if d != nil {
			descriptors = append(descriptors, structpb.NewStructValue(describe(d)))
		}
	}
	fields["descriptors"] = structpb.NewListValue(&structpb.ListValue{Values: descriptors})
	if n := c.request.GetHitsAddend(); n != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n))
	}
	of := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range c.items {
		it := &c.items[i]
		if it.counts() && (it.state != over || it.rule.ShadowMode) {
			mergeMetadata(of, it.rule.Metadata)
		}
	}
	if len(of.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(of)
	}
	return &structpb.Struct{Fields: fields}
}

func describe(d *ratelimitv3.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if o := d.GetLimit(); o != nil {
		fields["limit"] = structpb.NewStringValue(fmt.Sprintf("requests_per_unit:%d unit:%s", o.GetRequestsPerUnit(),
			o.GetUnit()))
	}
	if n := d.GetHitsAddend(); n != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// mergeMetadata adds to dst what it does not have yet. Structs that both have are merged; of all other values the one
// that was there first stays.
func mergeMetadata(dst, from *structpb.Struct) {
	for name, v := range from.GetFields() {
		old, there := dst.GetFields()[name]
		if !there {
			dst.Fields[name] = proto.Clone(v).(*structpb.Value) // the rule's own must not change with dst
			continue
		}
		if into, more := old.GetStructValue(), v.GetStructValue(); into != nil && more != nil {
			mergeMetadata(into, more)
		}
	}
}
