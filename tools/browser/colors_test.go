package browser

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"slices"
)

// fewColors makes a PNG of the 256 colours that are most frequent in one: a third of
// the bytes, and of a page's flat colours no difference to be seen.
func fewColors(in []byte) ([]byte, error) {
	img, err := png.Decode(bytes.NewReader(in))
	if err != nil {
		return nil, fmt.Errorf("read screenshot: %w", err)
	}
	count := make(map[color.RGBA]int)
	r := img.Bounds()
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	var p color.Palette
	for _, c := range colors[:min(len(colors), 256)] {
		p = append(p, c)
	}
	out := image.NewPaletted(r, p)
	draw.Draw(out, r, img, r.Min, draw.Src)
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, out); err != nil {
		return nil, fmt.Errorf("write picture: %w", err)
	}
	return b.Bytes(), nil
}
