// Package browser holds the tests of the live page in a headless Chromium, in a
// module of its own so that what drives a browser is no dependency of the product.
// They build the lanetrace binary, play the recording that it carries, and write
// the pictures that README and docs show when LANETRACE_IMAGES names a folder.
package browser
