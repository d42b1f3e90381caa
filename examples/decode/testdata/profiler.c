//go:build ignore

// Stands in for a profiler: it has recorded a hundred kernels each time that it is
// switched off, and refuses to be switched on twice.
static int on, kernels;

int lanetrace_profiler_on(void) { return on++ == 0 ? 0 : 7; }

int lanetrace_profiler_off(void)
{
	on = 0;
	kernels += 100;
	return 0;
}

int lanetrace_profiler_kernels(void) { return kernels; }
