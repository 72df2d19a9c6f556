/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A poll core's turn with the clock of the modelled ports stopped during the code of the software
 * NICs: see model_clock.h. Poll core, but for model_clock_map().
 */
#include "engine/rail/model_clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dv/setup.h"
#include "engine/rail/poll_core.h"

struct model_clock_file *model_clock_map(const char *path)
{
	struct model_clock_file *file = NULL;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return NULL;
	if (ftruncate(fd, sizeof(*file)) == 0) {
		file = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (file == MAP_FAILED)
			file = NULL;
	}
	close(fd);
	return file;
}

/*
 * Returns `span_ns` without what the rail's doorbells and the lines that its NIC wrote since the
 * last call would have cost this thread: during that time a real port goes on. A page validated is
 * one line, although two heads may share one.
 */
static uint64_t model_clock_less_charges(struct poll_core *core, unsigned i, uint64_t span_ns)
{
	const uint64_t *counter = core->rail[i]->counter;
	struct model_clock *clock = &core->clock;
	uint64_t doorbells = counter[COUNTER_doorbells], paid_ns;
	uint64_t lines = counter[COUNTER_cqes_reaped] + counter[COUNTER_pages_read];

	clock->charge_ns += (doorbells - clock->doorbells[i]) * core->options.doorbell_ns +
			    (lines - clock->lines[i]) * core->options.line_ns;
	clock->doorbells[i] = doorbells;
	clock->lines[i] = lines;
	paid_ns = clock->charge_ns < span_ns ? clock->charge_ns : span_ns;
	clock->charge_ns -= paid_ns;
	return span_ns - paid_ns;
}

/*
 * Steps the rail's software NIC. Called immediately before and after the rail's step, so that the
 * NIC sees no doorbell late, and the time spent is subtracted from the NICs' clocks.
 */
static unsigned model_clock_step_nic(struct poll_core *core, unsigned i)
{
	const struct rail_options *o = &core->rail[i]->options;
	struct model_clock *clock = &core->clock;
	uint64_t from = clock_ticks(), span;
	unsigned work;

	if (!core->rail[i]->device_steps)
		return 0;
	dv_leave_out(&o->device, 1, clock->behind_ns - clock->told_ns[i]);
	clock->told_ns[i] = clock->behind_ns;
	work = dv_step_all(&o->device, 1);
	span = clock_ticks() - from;
	gap_nics(&core->gaps, span);
	clock->behind_ns += model_clock_less_charges(core, i, clock_ticks_ns(span));
	shm_store64(&core->options.clock->core[core->rail[0]->options.index].behind_ns,
		clock->behind_ns);
	return work;
}

static inline unsigned model_clock_step(struct poll_core *core, unsigned i, uint64_t now_ns)
{
	unsigned work = model_clock_step_nic(core, i);

	work += rail_step(core->rail[i], now_ns);
	work += model_clock_step_nic(core, i);
	return work;
}

unsigned model_clock_turn(struct poll_core *core)
{
	return poll_rails(core, model_clock_step);
}
