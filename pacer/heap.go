package pacer

// indexedHeap is a binary heap that tells its items their positions, so that any of them can be removed.
type indexedHeap[T any] struct {
	items []T
	less  func(a, b T) bool
	place func(item T, position int) // stores the position of an item; -1: the item is no longer in the heap
}

func (h *indexedHeap[T]) push(item T) {
	h.items = append(h.items, item)
	h.up(len(h.items) - 1)
}

// remove takes out the item at a position.
func (h *indexedHeap[T]) remove(position int) {
	last := len(h.items) - 1
	h.place(h.items[position], -1)
	moved := h.items[last]
	var none T
	h.items[last] = none
	h.items = h.items[:last]
	if position < last {
		h.items[position] = moved
		h.fix(position)
	}
}

// fix restores the order after the item at a position has changed.
func (h *indexedHeap[T]) fix(position int) {
	if !h.down(position) {
		h.up(position)
	}
}

func (h *indexedHeap[T]) up(i int) {
	item := h.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(item, h.items[parent]) {
			break
		}
		h.items[i] = h.items[parent]
		h.place(h.items[i], i)
		i = parent
	}
	h.items[i] = item
	h.place(item, i)
}

// down moves an item towards the leaves, and reports whether it moved.
func (h *indexedHeap[T]) down(start int) bool {
	i, item := start, h.items[start]
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if right := child + 1; right < len(h.items) && h.less(h.items[right], h.items[child]) {
			child = right
		}
		if !h.less(h.items[child], item) {
			break
		}
		h.items[i] = h.items[child]
		h.place(h.items[i], i)
		i = child
	}
	h.items[i] = item
	h.place(item, i)
	return i > start
}

// empty removes all items, and frees the heap's memory if it had room for more than slabSize items.
func (h *indexedHeap[T]) empty() {
	clear(h.items)
	h.items = h.items[:0]
	if cap(h.items) > slabSize {
		h.items = nil
	}
}
