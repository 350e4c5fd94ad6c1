package inflight

// Receipts returns how many receipts p keeps.
func (p *Places) Receipts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.receipts)
}
