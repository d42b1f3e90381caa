/*
 * A stand-in for the driver's library of device readings: two GPUs that answer
 * what a sidecar asks on each of its readings. NVML_STAND_IN says what ails the
 * first one: hot, held down by heat; mute, power cannot be read. Functions that
 * are missing here are ones that older libraries lack, too.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_SUPPORTED = 3, UNKNOWN = 999 };
enum { POWER_CAP = 0x4, HW_THERMAL = 0x40 };

struct gpu { const char *uuid; };
static struct gpu gpus[2] = {
	{ "GPU-00000000-0000-0000-0000-000000000001" },
	{ "GPU-00000000-0000-0000-0000-000000000002" },
};

static int ails(const struct gpu *g, const char *what)
{
	const char *e = getenv("NVML_STAND_IN");
	return g == &gpus[0] && e && strcmp(e, what) == 0;
}

EXPORT int nvmlInit_v2(void) { return SUCCESS; }
EXPORT int nvmlShutdown(void) { return SUCCESS; }
EXPORT const char *nvmlErrorString(int r) { return r == UNKNOWN ? "Unknown Error" : "Success"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return SUCCESS; }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct gpu **g)
{
	*g = &gpus[i & 1];
	return SUCCESS;
}

static int text(char *to, unsigned room, const char *s)
{
	strncpy(to, s, room - 1);
	to[room - 1] = 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(struct gpu *g, char *to, unsigned room) { return text(to, room, g->uuid); }
EXPORT int nvmlDeviceGetName(struct gpu *g, char *to, unsigned room) { (void)g; return text(to, room, "stand-in GPU"); }

EXPORT int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *mw)
{
	*mw = 400000;
	return ails(g, "mute") ? UNKNOWN : SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(struct gpu *g, unsigned long long *mj)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	*mj = (unsigned long long)t.tv_sec * 400000 + (unsigned long long)t.tv_nsec / 2500;
	(void)g;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(struct gpu *g, unsigned which, unsigned *mhz)
{
	*mhz = which == 1 ? (ails(g, "hot") ? 900 : 1980) : 3201;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(struct gpu *g, unsigned sensor, unsigned *c)
{
	(void)sensor;
	*c = ails(g, "hot") ? 92 : 61;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *g, unsigned long long *bits)
{
	*bits = ails(g, "hot") ? HW_THERMAL : POWER_CAP;
	return SUCCESS;
}

struct memory { unsigned long long total, free, used; };

EXPORT int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *m)
{
	(void)g;
	m->total = 141ull << 30;
	m->used = 90ull << 30;
	m->free = m->total - m->used;
	return SUCCESS;
}

struct utilization { unsigned gpu, memory; };

EXPORT int nvmlDeviceGetUtilizationRates(struct gpu *g, struct utilization *u)
{
	(void)g;
	u->gpu = 97;
	u->memory = 55;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct gpu *g, unsigned sort, unsigned counter, unsigned long long *n)
{
	(void)g, (void)sort, (void)counter, (void)n;
	return NOT_SUPPORTED;
}
