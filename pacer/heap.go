package pacer

// indexedHeap is a heap for package container/heap. It tells its items their positions, so that any of them can be
// removed.
type indexedHeap[T any] struct {
	items []T
	less  func(a, b T) bool
	place func(item T, position int) // stores the position of an item; -1: the item is no longer in the heap
}

// Len implements heap.Interface.
func (h *indexedHeap[T]) Len() int { return len(h.items) }

// Less implements heap.Interface.
func (h *indexedHeap[T]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }

// Swap implements heap.Interface.
func (h *indexedHeap[T]) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.place(h.items[i], i)
	h.place(h.items[j], j)
}

// Push implements heap.Interface.
func (h *indexedHeap[T]) Push(item any) {
	h.items = append(h.items, item.(T)) //nolint:forcetypeassert // the queue pushes nothing else
	h.place(h.items[len(h.items)-1], len(h.items)-1)
}

// Pop implements heap.Interface.
func (h *indexedHeap[T]) Pop() any {
	last := len(h.items) - 1
	item := h.items[last]
	h.place(item, -1)
	clear(h.items[last:])
	h.items = h.items[:last]
	return item
}

// empty removes all items, and frees the heap's memory if it had room for more than slabSize items.
func (h *indexedHeap[T]) empty() {
	clear(h.items)
	h.items = h.items[:0]
	if cap(h.items) > slabSize {
		h.items = nil
	}
}
