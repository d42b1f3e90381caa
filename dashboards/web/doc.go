// Package web is the live page: the last steps of the engines that a collector
// reads as a timeline, their lanes, kernels, memory and loss account, in a browser
// and without any other server.
//
// A [Page] is a [collector.Observer] that keeps a bounded amount of each run,
// whether somebody looks or not, and an http.Handler that serves one embedded page
// and a stream of server-sent events. It writes nothing, asks no outside address
// for anything, and needs of the browser only scripts of its own origin. What
// engines call themselves reaches the browser as JSON and is shown as text, never
// as markup.
package web
