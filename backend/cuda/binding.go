//go:build cgo

package cuda

/*
#cgo CFLAGS: -std=gnu11 -O2
#cgo LDFLAGS: -ldl -lpthread
#cgo noescape lt_open
#cgo nocallback lt_open
#cgo noescape lt_init
#cgo nocallback lt_init
#cgo noescape lt_mem_info
#cgo nocallback lt_mem_info
#cgo noescape lt_module_load
#cgo nocallback lt_module_load
#cgo noescape lt_function
#cgo nocallback lt_function
#cgo noescape lt_stream_create
#cgo nocallback lt_stream_create
#cgo nocallback lt_stream_sync
#cgo nocallback lt_stream_query
#cgo nocallback lt_stream_quiet
#cgo nocallback lt_stream_wait
#cgo nocallback lt_stream_capturing
#cgo noescape lt_event_create
#cgo nocallback lt_event_create
#cgo nocallback lt_event_record
#cgo nocallback lt_event_query
#cgo nocallback lt_event_sync
#cgo noescape lt_capture_end
#cgo nocallback lt_capture_end
#cgo noescape lt_launch
#cgo nocallback lt_launch
#cgo noescape lt_launch_timed
#cgo nocallback lt_launch_timed
#cgo noescape lt_alloc
#cgo nocallback lt_alloc
#cgo nocallback lt_tel_record_external
#cgo nocallback lt_copy_htod_kept
#cgo nocallback lt_copy_dtoh_kept
#cgo nocallback lt_copy_dtod_2d
#cgo noescape lt_host_device_ptr
#cgo nocallback lt_host_device_ptr
#cgo noescape lt_module_word
#cgo nocallback lt_module_word
#cgo noescape lt_alloc_managed
#cgo nocallback lt_alloc_managed
#cgo nocallback lt_band_fill
#cgo noescape lt_band_read_all
#cgo nocallback lt_band_read_all
#cgo nocallback lt_stream_settle
#cgo noescape lt_copy_htod
#cgo nocallback lt_copy_htod
#cgo noescape lt_copy_dtoh
#cgo nocallback lt_copy_dtoh
#cgo nocallback lt_copy_htod_staged
#cgo nocallback lt_staged_wait
#cgo noescape lt_tel_events_create
#cgo nocallback lt_tel_events_create
#cgo noescape lt_tel_events_destroy
#cgo nocallback lt_tel_events_destroy
#cgo noescape lt_tel_stream_create
#cgo nocallback lt_tel_stream_create
#cgo noescape lt_tel_stream_id
#cgo nocallback lt_tel_stream_id
#cgo noescape lt_tel_record
#cgo nocallback lt_tel_record
#cgo noescape lt_tel_elapsed
#cgo nocallback lt_tel_elapsed
#cgo nocallback lt_tel_pending
#cgo noescape lt_tel_since
#cgo nocallback lt_tel_since
#cgo noescape lt_tel_anchor
#cgo nocallback lt_tel_anchor
#cgo noescape lt_tel_spin_load
#cgo nocallback lt_tel_spin_load
#cgo nocallback lt_tel_spin
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
)

// This file is all that speaks C: one Go function for each of the shim's. What C
// keeps beyond a call is C's own memory, and Go memory that goes there holds no Go
// pointer. Where C writes into Go values their layouts are held equal here.
var (
	_ [unsafe.Sizeof(C.lt_arg{})]byte                         = [unsafe.Sizeof(backend.Arg{})]byte{}
	_ [unsafe.Offsetof(backend.Arg{}.Size)]byte               = [unsafe.Offsetof(C.lt_arg{}.size)]byte{}
	_ [unsafe.Sizeof(C.lt_pair{})]byte                        = [unsafe.Sizeof(cudaevents.Pair{})]byte{}
	_ [unsafe.Offsetof(cudaevents.Pair{}.End)]byte            = [unsafe.Offsetof(C.lt_pair{}.end)]byte{}
	_ [unsafe.Sizeof(C.lt_times{})]byte                       = [unsafe.Sizeof(cudaevents.Times{})]byte{}
	_ [unsafe.Offsetof(cudaevents.Times{}.SinceAnchorMS)]byte = [unsafe.Offsetof(C.lt_times{}.since_anchor_ms)]byte{}
	_ [unsafe.Offsetof(cudaevents.Times{}.SinceResult)]byte   = [unsafe.Offsetof(C.lt_times{}.since)]byte{}
	_ [unsafe.Sizeof(C.lt_handle(0))]byte                     = [unsafe.Sizeof(cudaevents.Event(0))]byte{}
	_ [backend.MaxArgs]byte                                   = [C.LT_MAX_ARGS]byte{}
	_ [unsafe.Sizeof(C.lt_band_read{})]byte                   = [unsafe.Sizeof(bandRead{})]byte{}
	_ [unsafe.Offsetof(bandRead{}.bytes)]byte                 = [unsafe.Offsetof(C.lt_band_read{}.bytes)]byte{}
)

// capturing is what blocking and staged copies return on a capturing stream.
const capturing Result = C.LT_CAPTURING

type library struct {
	p    *C.lt_lib
	path string
}

func openLibrary(path string) (library, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var message [1024]C.char
	var missing [128]C.char
	p := C.lt_open(cpath, &message[0], C.size_t(len(message)), &missing[0], C.size_t(len(missing)))
	if p == nil {
		return library{}, &LibraryError{Path: path, Symbol: C.GoString(&missing[0]), Detail: C.GoString(&message[0])}
	}
	return library{p, path}, nil
}

func (l library) close() { C.lt_close(l.p) }

// Features are what a driver's library has beyond what this package needs.
type features int

const (
	hasStreamID  features = C.LT_HAS_STREAM_ID
	hasParamInfo features = C.LT_HAS_PARAM_INFO
	hasUUID      features = C.LT_HAS_UUID
	hasElapsedV2 features = C.LT_HAS_ELAPSED_V2
)

func (l library) features() features { return features(C.lt_features(l.p)) }

// fail makes an error of a result that is not success.
func (l library) fail(op string, r Result) *Error {
	if r == capturing {
		return &Error{Op: op, Result: ErrCaptureUnsupported, Detail: "the stream is being captured"}
	}
	e := &Error{Op: op, Result: r}
	if _, ok := names[r]; !ok {
		if n := C.lt_error_name(l.p, C.lt_result(r)); n != nil {
			e.Name = C.GoString(n)
		}
	}
	return e
}

// device is what there is to know of a device.
type device struct {
	driverVersion, count, capability, sms int
	mig, integrated                       bool
	totalBytes                            int64
	uuid                                  [16]byte
	name                                  string
}

var initSteps = map[C.int]string{
	C.LT_STEP_INIT: "initialise the driver", C.LT_STEP_COUNT: "count devices",
	C.LT_STEP_ORDINAL: "find the device", C.LT_STEP_DESCRIBE: "describe the device",
}

func (l library) init(ordinal int) (device, string, Result) {
	var d C.lt_device
	var step C.int
	r := C.lt_init(l.p, C.int(ordinal), &d, &step)
	dev := device{
		driverVersion: int(d.version), count: int(d.count), capability: int(d.capability), sms: int(d.sms),
		mig: d.mig != 0, integrated: d.integrated != 0, totalBytes: int64(d.total_bytes), name: C.GoString(&d.name[0]),
	}
	for i, b := range d.uuid {
		dev.uuid[i] = byte(b)
	}
	return dev, initSteps[step], Result(r)
}

// primary is a device's primary context.
type primary struct{ p *C.lt_ctx }

func (l library) retain(ordinal int) (primary, Result) {
	var c primary
	r := C.lt_retain(l.p, C.int(ordinal), &c.p)
	return c, Result(r)
}

// id tells contexts apart as long as somebody holds them.
func (c primary) id() uintptr { return uintptr(c.p.ctx) }

func (c primary) release() Result { return Result(C.lt_release(c.p)) }

func (c primary) memInfo() (free, total uint64, r Result) {
	var f, t C.uint64_t
	r = Result(C.lt_mem_info(c.p, &f, &t))
	return uint64(f), uint64(t), r
}

// moduleLoad loads an image, which must end with a zero byte.
func (c primary) moduleLoad(image []byte) (module uintptr, log string, r Result) {
	var m C.lt_handle
	var text [4096]C.char
	r = Result(C.lt_module_load(c.p, unsafe.Pointer(unsafe.SliceData(image)), &m, &text[0], C.size_t(len(text)-1)))
	return uintptr(m), C.GoString(&text[0]), r
}

func (c primary) moduleUnload(module uintptr) Result {
	return Result(C.lt_module_unload(c.p, C.lt_handle(module)))
}

// function looks up a function and, where the driver can say, its parameters'
// sizes; count is -1 where it cannot.
func (c primary) function(module uintptr, name string, sizes []uint32) (fn uintptr, count int, r Result) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var f C.lt_handle
	var n C.int
	r = Result(C.lt_function(c.p, C.lt_handle(module), cname, &f, (*C.uint32_t)(unsafe.SliceData(sizes)), C.int(len(sizes)), &n))
	return uintptr(f), int(n), r
}

func (c primary) streamCreate() (backend.Stream, Result) {
	var s C.lt_handle
	r := C.lt_stream_create(c.p, &s)
	return backend.Stream(s), Result(r)
}

func (c primary) streamDestroy(s backend.Stream) Result {
	return Result(C.lt_stream_destroy(c.p, C.lt_handle(s)))
}

func (c primary) streamSync(s backend.Stream) Result {
	return Result(C.lt_stream_sync(c.p, C.lt_handle(s)))
}

func (c primary) streamQuery(s backend.Stream) Result {
	return Result(C.lt_stream_query(c.p, C.lt_handle(s)))
}

// streamQuiet is streamQuery that leaves a capture alone: capturing.
func (c primary) streamQuiet(s backend.Stream) Result {
	return Result(C.lt_stream_quiet(c.p, C.lt_handle(s)))
}

func (c primary) streamWait(s backend.Stream, e backend.Event) Result {
	return Result(C.lt_stream_wait(c.p, C.lt_handle(s), C.lt_handle(e)))
}

func (c primary) streamCapturing(s backend.Stream) bool {
	return C.lt_stream_capturing(c.p, C.lt_handle(s)) != 0
}

func (c primary) eventCreate() (backend.Event, Result) {
	var e C.lt_handle
	r := C.lt_event_create(c.p, &e)
	return backend.Event(e), Result(r)
}

func (c primary) eventDestroy(e backend.Event) Result {
	return Result(C.lt_event_destroy(c.p, C.lt_handle(e)))
}

func (c primary) eventRecord(e backend.Event, s backend.Stream) Result {
	return Result(C.lt_event_record(c.p, C.lt_handle(e), C.lt_handle(s)))
}

func (c primary) eventQuery(e backend.Event) Result {
	return Result(C.lt_event_query(c.p, C.lt_handle(e)))
}

func (c primary) eventSync(e backend.Event) Result {
	return Result(C.lt_event_sync(c.p, C.lt_handle(e)))
}

func (c primary) captureBegin(s backend.Stream, m CaptureMode) Result {
	return Result(C.lt_capture_begin(c.p, C.lt_handle(s), C.int(m.driver())))
}

var captureSteps = map[C.int]string{
	C.LT_STEP_END: "end the capture", C.LT_STEP_NODES: "count the graph's nodes", C.LT_STEP_INSTANTIATE: "instantiate the graph",
}

func (c primary) captureEnd(s backend.Stream) (exec uintptr, nodes uint64, step string, r Result) {
	var e C.lt_handle
	var n C.uint64_t
	var st C.int
	r = Result(C.lt_capture_end(c.p, C.lt_handle(s), &e, &n, &st))
	return uintptr(e), uint64(n), captureSteps[st], r
}

func (c primary) captureAbort(s backend.Stream) { C.lt_capture_abort(c.p, C.lt_handle(s)) }

func (c primary) graphDestroy(exec uintptr) Result {
	return Result(C.lt_graph_destroy(c.p, C.lt_handle(exec)))
}

// launchDesc is a kernel launch or, with exec, a graph launch.
type launchDesc = C.lt_launch_desc

func kernelDesc(fn uintptr, l *backend.Launch) launchDesc {
	return launchDesc{
		fn: C.lt_handle(fn), stream: C.lt_handle(l.Stream),
		grid:         [3]C.uint32_t{C.uint32_t(l.Grid[0]), C.uint32_t(l.Grid[1]), C.uint32_t(l.Grid[2])},
		block:        [3]C.uint32_t{C.uint32_t(l.Block[0]), C.uint32_t(l.Block[1]), C.uint32_t(l.Block[2])},
		shared_bytes: C.uint32_t(l.SharedBytes), nargs: C.uint32_t(len(l.Args)),
	}
}

func graphDesc(exec uintptr, s backend.Stream) launchDesc {
	return launchDesc{exec: C.lt_handle(exec), stream: C.lt_handle(s)}
}

func cargs(args []backend.Arg) *C.lt_arg {
	return (*C.lt_arg)(unsafe.Pointer(unsafe.SliceData(args)))
}

// arguments are a launch's, in one of three forms.
type arguments struct {
	args []backend.Arg
	flat *flatArgs
	// addresses of values that the caller has pinned
	addrs []uintptr
}

// flatArgs are copies of parameters of any size.
type flatArgs = C.lt_flat

// putFlat copies parameter i behind the others, which take used bytes, and returns how
// many they take then; ok is false when there is no room.
func putFlat(f *flatArgs, i int, p backend.Param, size, used int) (total int, ok bool) {
	// 16 is the most that a parameter can want to be aligned to.
	at := (used + 15) &^ 15
	if at+size > len(f.bytes) {
		return used, false
	}
	f.at[i] = C.uint32_t(at)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&f.bytes[at])), size), backend.ParamBytes(p, size))
	return at + size, true
}

// addresses are the addresses of parameters, which the caller has pinned.
func addresses(params []backend.Param) []uintptr {
	out := make([]uintptr, len(params))
	for i, p := range params {
		out[i] = uintptr(p)
	}
	return out
}

// pin pins what p points to and reports whether it could: it is Go memory.
func pin(pinner *runtime.Pinner, p unsafe.Pointer) (ok bool) {
	defer func() { ok = recover() == nil }()
	pinner.Pin(p)
	return true
}

func pinBytes(pinner *runtime.Pinner, b []byte) bool {
	return pin(pinner, unsafe.Pointer(unsafe.SliceData(b)))
}

// place is where a slice begins, to find it by.
func place(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (a *arguments) c(d *launchDesc) unsafe.Pointer {
	switch {
	case a.flat != nil:
		d.form = C.LT_FLAT
		return unsafe.Pointer(a.flat)
	case a.addrs != nil:
		d.form = C.LT_POINTERS
		return unsafe.Pointer(unsafe.SliceData(a.addrs))
	}
	return unsafe.Pointer(cargs(a.args))
}

func (c primary) launch(d *launchDesc, args *arguments) Result {
	return Result(C.lt_launch(c.p, d, args.c(d)))
}

func (c primary) launchTimed(d *launchDesc, args *arguments, p cudaevents.Pair) cudaevents.LaunchResult {
	var r C.lt_launch_result
	C.lt_launch_timed(c.p, d, args.c(d), C.lt_handle(p.Start), C.lt_handle(p.End), &r)
	return cudaevents.LaunchResult{
		Capturing: r.capturing != 0, StartRecorded: r.start_recorded != 0, EndRecorded: r.end_recorded != 0,
		Pending: r.pending != 0, StartResult: cudaevents.Result(r.start), LaunchResult: cudaevents.Result(r.launch),
		EndResult: cudaevents.Result(r.end), Calls: int(r.calls),
	}
}

func (c primary) alloc(bytes int) (backend.DevicePtr, Result) {
	var p C.lt_devptr
	r := C.lt_alloc(c.p, C.uint64_t(bytes), &p)
	return backend.DevicePtr(p), Result(r)
}

func (c primary) free(p backend.DevicePtr) Result { return Result(C.lt_free(c.p, C.lt_devptr(p))) }

func (c primary) allocManaged(bytes int) (backend.DevicePtr, Result) {
	var p C.lt_devptr
	r := C.lt_alloc_managed(c.p, C.uint64_t(bytes), &p)
	return backend.DevicePtr(p), Result(r)
}

// bandRead is a stretch of device memory to be read, and where to.
type bandRead struct {
	addr      uint64
	at, bytes int
	bands     int // that lie in it
}

func (c primary) bandFill(p backend.DevicePtr, value byte, bytes int, s backend.Stream, wait bool) Result {
	return Result(C.lt_band_fill(c.p, C.lt_devptr(p), C.uint8_t(value), C.size_t(bytes), C.lt_handle(s), cbool(wait)))
}

// bandRead reads into buf, which must be from hostAlloc.
func (c primary) bandRead(buf []byte, reads []bandRead, s backend.Stream) Result {
	return Result(C.lt_band_read_all(c.p, unsafe.Pointer(unsafe.SliceData(buf)),
		(*C.lt_band_read)(unsafe.Pointer(unsafe.SliceData(reads))), C.size_t(len(reads)), C.lt_handle(s)))
}

// streamSettle waits for a stream that is not being captured.
func (c primary) streamSettle(s backend.Stream) Result {
	return Result(C.lt_stream_settle(c.p, C.lt_handle(s)))
}

// hostAlloc allocates page-locked memory, which is C's.
func (c primary) hostAlloc(bytes int) ([]byte, Result) {
	var p unsafe.Pointer
	r := Result(C.lt_host_alloc(c.p, C.size_t(bytes), &p))
	if r != Success {
		return nil, r
	}
	return unsafe.Slice((*byte)(p), bytes), Success
}

func (c primary) hostFree(b []byte) Result {
	return Result(C.lt_host_free(c.p, unsafe.Pointer(unsafe.SliceData(b))))
}

func (c primary) copyHtoD(dst backend.DevicePtr, src []byte, s backend.Stream) Result {
	return Result(C.lt_copy_htod(c.p, C.lt_devptr(dst), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)), C.lt_handle(s)))
}

func (c primary) copyDtoH(dst []byte, src backend.DevicePtr, s backend.Stream) Result {
	return Result(C.lt_copy_dtoh(c.p, unsafe.Pointer(unsafe.SliceData(dst)), C.lt_devptr(src), C.size_t(len(dst)), C.lt_handle(s)))
}

// copyHtoDStaged enqueues a copy of src, which must be from hostAlloc, and
// records done behind it.
func (c primary) copyHtoDStaged(dst backend.DevicePtr, src []byte, s backend.Stream, done backend.Event) Result {
	return Result(C.lt_copy_htod_staged(c.p, C.lt_devptr(dst), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)), C.lt_handle(s), C.lt_handle(done)))
}

// copyHtoDCaptured notes a copy of src, which must be from hostAlloc, in a
// capture.
func (c primary) copyHtoDCaptured(dst backend.DevicePtr, src []byte, s backend.Stream) Result {
	return Result(C.lt_copy_htod_captured(c.p, C.lt_devptr(dst), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)), C.lt_handle(s)))
}

// copyHtoDKept and copyDtoHKept enqueue copies from and to memory that the caller
// keeps where it is.
func (c primary) copyHtoDKept(dst backend.DevicePtr, src []byte, s backend.Stream, captured bool) Result {
	return Result(C.lt_copy_htod_kept(c.p, C.lt_devptr(dst), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)), C.lt_handle(s), cbool(captured)))
}

func (c primary) copyDtoHKept(dst []byte, src backend.DevicePtr, s backend.Stream, captured bool) Result {
	return Result(C.lt_copy_dtoh_kept(c.p, unsafe.Pointer(unsafe.SliceData(dst)), C.lt_devptr(src), C.size_t(len(dst)), C.lt_handle(s), cbool(captured)))
}

func (c primary) copyDtoD2D(dst backend.DevicePtr, dstPitch int, src backend.DevicePtr, srcPitch, width, height int, s backend.Stream) Result {
	return Result(C.lt_copy_dtod_2d(c.p, C.lt_devptr(dst), C.size_t(dstPitch), C.lt_devptr(src), C.size_t(srcPitch), C.size_t(width), C.size_t(height), C.lt_handle(s)))
}

// hostDevicePtr is where the device sees memory from hostAlloc.
func (c primary) hostDevicePtr(b []byte) (backend.DevicePtr, Result) {
	var p C.lt_devptr
	r := C.lt_host_device_ptr(c.p, unsafe.Pointer(unsafe.SliceData(b)), &p)
	return backend.DevicePtr(p), Result(r)
}

func (c primary) bind() Result { return Result(C.lt_bind(c.p)) }

// moduleWord reads a 32-bit global of a module's.
func (c primary) moduleWord(module uintptr, name string) (uint32, Result) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var v C.uint32_t
	r := C.lt_module_word(c.p, C.lt_handle(module), cname, &v)
	return uint32(v), Result(r)
}

func (c primary) stagedDone(done backend.Event, block bool) Result {
	return Result(C.lt_staged_wait(c.p, C.lt_handle(done), cbool(block)))
}

func (c primary) copyDtoD(dst, src backend.DevicePtr, bytes int, s backend.Stream, block bool) Result {
	return Result(C.lt_copy_dtod(c.p, C.lt_devptr(dst), C.lt_devptr(src), C.size_t(bytes), C.lt_handle(s), cbool(block)))
}

func (c primary) memset(p backend.DevicePtr, value byte, bytes int, s backend.Stream, block bool) Result {
	return Result(C.lt_memset(c.p, C.lt_devptr(p), C.uint8_t(value), C.size_t(bytes), C.lt_handle(s), cbool(block)))
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func chandles(e []cudaevents.Event) *C.lt_handle {
	return (*C.lt_handle)(unsafe.Pointer(unsafe.SliceData(e)))
}

func (c primary) telEventsCreate(dst []cudaevents.Event) Result {
	return Result(C.lt_tel_events_create(c.p, chandles(dst), C.size_t(len(dst))))
}

func (c primary) telEventsDestroy(events []cudaevents.Event) Result {
	return Result(C.lt_tel_events_destroy(c.p, chandles(events), C.size_t(len(events))))
}

func (c primary) telStreamCreate() (cudaevents.Stream, Result) {
	var s C.lt_handle
	r := C.lt_tel_stream_create(c.p, &s)
	return cudaevents.Stream(s), Result(r)
}

func (c primary) telStreamDestroy(s cudaevents.Stream) Result {
	return Result(C.lt_tel_stream_destroy(c.p, C.lt_handle(s)))
}

func (c primary) telStreamID(s cudaevents.Stream) (uint64, Result) {
	var id C.uint64_t
	r := C.lt_tel_stream_id(c.p, C.lt_handle(s), &id)
	return uint64(id), Result(r)
}

func (c primary) telRecord(e cudaevents.Event, s cudaevents.Stream) cudaevents.Recorded {
	var r C.lt_recorded
	C.lt_tel_record(c.p, C.lt_handle(e), C.lt_handle(s), &r)
	return cudaevents.Recorded{Capturing: r.capturing != 0, Result: cudaevents.Result(r.result), Calls: int(r.calls)}
}

func (c primary) telRecordExternal(e cudaevents.Event, s cudaevents.Stream) cudaevents.Result {
	return cudaevents.Result(C.lt_tel_record_external(c.p, C.lt_handle(e), C.lt_handle(s)))
}

// telElapsed reads pairs into out, which must not be shorter.
func (c primary) telElapsed(anchor cudaevents.Event, pairs []cudaevents.Pair, out []cudaevents.Times) (int, cudaevents.Result, int) {
	var r C.lt_elapsed_result
	C.lt_tel_elapsed(c.p, C.lt_handle(anchor), (*C.lt_pair)(unsafe.Pointer(unsafe.SliceData(pairs))),
		(*C.lt_times)(unsafe.Pointer(unsafe.SliceData(out))), C.size_t(len(pairs)), &r)
	return int(r.n), cudaevents.Result(r.result), int(r.calls)
}

func (c primary) telPending(e cudaevents.Event) cudaevents.Result {
	return cudaevents.Result(C.lt_tel_pending(c.p, C.lt_handle(e)))
}

func (c primary) telSince(a, b cudaevents.Event) (float32, cudaevents.Result) {
	var ms C.float
	r := C.lt_tel_since(c.p, C.lt_handle(a), C.lt_handle(b), &ms)
	return float32(ms), cudaevents.Result(r)
}

func (c primary) telAnchor(e cudaevents.Event, s cudaevents.Stream, boundNS int64) cudaevents.AnchorTry {
	var t C.lt_anchor_try
	C.lt_tel_anchor(c.p, C.lt_handle(e), C.lt_handle(s), C.int64_t(boundNS), &t)
	return cudaevents.AnchorTry{
		BeforeMonoNS: int64(t.before_ns), AfterMonoNS: int64(t.after_ns),
		Result: cudaevents.Result(t.result), Calls: int(t.calls),
	}
}

func (c primary) telSpinLoad() (module, fn uintptr, r Result) {
	var m, f C.lt_handle
	r = Result(C.lt_tel_spin_load(c.p, &m, &f))
	return uintptr(m), uintptr(f), r
}

func (c primary) telModuleUnload(module uintptr) Result {
	return Result(C.lt_tel_module_unload(c.p, C.lt_handle(module)))
}

func (c primary) telSpin(fn uintptr, s cudaevents.Stream, cycles uint64, p cudaevents.Pair) Result {
	return Result(C.lt_tel_spin(c.p, C.lt_handle(fn), C.lt_handle(s), C.uint64_t(cycles), C.lt_handle(p.Start), C.lt_handle(p.End)))
}

// forkGuard makes children of fork() close fd.
func forkGuard(fd int) error {
	if e := C.lt_fork_guard(C.int(fd)); e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// setArgs says how many arguments a launch has.
func setArgs(d *launchDesc, n int) { d.nargs = C.uint32_t(n) }
