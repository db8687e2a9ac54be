package memory

// pile is a heap of items that know where they are, so that any of them can be
// taken out.
type pile[T any] struct {
	items []T
	less  func(a, b T) bool
	place func(item T) *int // where the item keeps its index
}

func (p *pile[T]) len() int { return len(p.items) }

// top returns the least item.
func (p *pile[T]) top() T { return p.items[0] }

func (p *pile[T]) push(item T) {
	*p.place(item) = len(p.items)
	p.items = append(p.items, item)
	p.up(len(p.items) - 1)
}

func (p *pile[T]) remove(item T) {
	i, last := *p.place(item), len(p.items)-1
	p.swap(i, last)
	var zero T
	p.items[last] = zero
	p.items = p.items[:last]
	if i < last {
		p.up(i)
		p.down(i)
	}
}

// walk visits the items from the i-th downwards; below one for which visit returns
// false it visits none.
func (p *pile[T]) walk(i int, visit func(item T) bool) {
	if i < len(p.items) && visit(p.items[i]) {
		p.walk(2*i+1, visit)
		p.walk(2*i+2, visit)
	}
}

func (p *pile[T]) swap(i, j int) {
	p.items[i], p.items[j] = p.items[j], p.items[i]
	*p.place(p.items[i]), *p.place(p.items[j]) = i, j
}

func (p *pile[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !p.less(p.items[i], p.items[parent]) {
			return
		}
		p.swap(i, parent)
		i = parent
	}
}

func (p *pile[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(p.items) {
			return
		}
		if right := child + 1; right < len(p.items) && p.less(p.items[right], p.items[child]) {
			child = right
		}
		if !p.less(p.items[child], p.items[i]) {
			return
		}
		p.swap(i, child)
		i = child
	}
}
