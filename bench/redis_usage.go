package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// redisUsage is what a number of decisions cost the Redis server, as it counts itself, and their client.
type redisUsage struct {
	decisions float64
	commands  map[string]float64 // calls by name, those of scripts included
	in, out   float64            // bytes that the server received and sent
	server    float64            // processor time of the server, s
	client    float64            // processor time of this process, s
}

// String describes the usage per decision. The commands are ordered by frequency, and then by name.
func (u redisUsage) String() string {
	total, names := 0.0, slices.SortedFunc(maps.Keys(u.commands), func(a, b string) int {
		return cmp.Or(cmp.Compare(u.commands[b], u.commands[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		total += u.commands[name]
		names[i] = fmt.Sprintf("%.3g %s", u.commands[name]/u.decisions, strings.ToUpper(name))
	}
	return fmt.Sprintf("%.3g commands (%s), %.3g bytes to the server and %.3g from it, processor time %.3g µs here "+
		"and %.3g µs there",
		total/u.decisions, strings.Join(names, ", "), u.in/u.decisions, u.out/u.decisions,
		u.client*1e6/u.decisions, u.server*1e6/u.decisions)
}

// usageOf measures what about the given number of decisions of a contender cost. The contender's counters must exist.
// The processor times are the least of several runs, because other programs use the machine, too.
func usageOf(addr string, c *contender, decisions int) (redisUsage, error) {
	client := redisClient(addr)
	defer func() { _ = client.Close() }()
	ops := max(1, decisions/c.unit()) * c.unit()
	least := redisUsage{client: math.Inf(1), server: math.Inf(1)}
	for range 5 {
		u, err := usageOfTrial(client, c, ops)
		if err != nil {
			return u, err
		}
		u.client, u.server = min(u.client, least.client), min(u.server, least.server)
		least = u
	}
	return least, nil
}

// usageOfTrial measures one trial. The first two of its three readings show what a reading itself costs.
func usageOfTrial(client *goredis.Client, c *contender, ops int) (redisUsage, error) {
	var readings [3]redisUsage
	for i := range readings {
		began := processorTime()
		if i == 2 {
			if _, _, err := c.trial(ops); err != nil {
				return redisUsage{}, err
			}
		}
		here := processorTime() - began
		var err error
		if readings[i], err = readUsage(client); err != nil {
			return redisUsage{}, err
		}
		readings[i].client = here.Seconds()
	}
	before, after := &readings[1], &readings[2]
	u := redisUsage{
		decisions: float64(ops), commands: map[string]float64{}, client: after.client,
		in:     after.in - before.in - (before.in - readings[0].in),
		out:    after.out - before.out - (before.out - readings[0].out),
		server: after.server - before.server,
	}
	for name, calls := range after.commands {
		if calls -= before.commands[name]; calls > 0 && name != "info" {
			u.commands[name] = calls
		}
	}
	return u, nil
}

// readUsage reads what the server counts.
func readUsage(client *goredis.Client) (u redisUsage, err error) {
	info, err := client.InfoMap(context.Background(), "commandstats", "stats", "cpu").Result()
	if err != nil {
		return u, err
	}
	number := func(section, name string) float64 {
		v, e := strconv.ParseFloat(info[section][name], 64)
		if e != nil && err == nil {
			err = fmt.Errorf("INFO %s: %s: %w", section, name, e)
		}
		return v
	}
	u.in, u.out = number("Stats", "total_net_input_bytes"), number("Stats", "total_net_output_bytes")
	u.server = number("CPU", "used_cpu_user") + number("CPU", "used_cpu_sys")
	u.commands = map[string]float64{}
	for name, text := range info["Commandstats"] {
		var calls float64
		if _, e := fmt.Sscanf(text, "calls=%f,", &calls); e != nil && err == nil {
			err = fmt.Errorf("INFO commandstats: %s: %w: %q", name, e, text)
		}
		u.commands[strings.TrimPrefix(name, "cmdstat_")] = calls
	}
	return u, err
}
