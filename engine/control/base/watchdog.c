/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog's thread. It reads the turn counters that the loop and the poll cores write anyway
 * and takes no lock that they take, so it cannot be blocked by them.
 */
#include "engine/control/base/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "config/log.h"
#include "config/thread.h"
#include "engine/control/base/control.h"
#include "engine/control/base/fatal.h"

struct watchdog {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop; /* true: the watchdog's thread must end; protected by the lock */
	struct control *control;
	struct watched loop, poll_core[RAILS_MAX];
};

bool watched_stands(struct watched *watched, uint64_t beat)
{
	if (beat != watched->beat) {
		watched->beat = beat;
		watched->still = 0;
	} else {
		watched->still++;
	}
	return watched->still >= WATCHDOG_TICKS;
}

/* Whether a debugger is attached to the engine: a debugger stops threads on purpose. */
static bool watchdog_traced(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[128];
	int tracer = 0;

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	if (status)
		fclose(status);
	return tracer != 0;
}

static void watchdog_judge(
	struct watched *watched, uint64_t beat, const char *what, unsigned number)
{
	if (!watched_stands(watched, beat))
		return;
	if (watchdog_traced())
		watched->still = 0;
	else
		engine_abort("%s %u has not turned for %u s", what, number,
			WATCHDOG_TICKS * WATCHDOG_TICK_MS / 1000);
}

static void watchdog_tick(struct watchdog *dog)
{
	struct control *control = dog->control;

	watchdog_judge(&dog->loop, shm_load64(&control->pace.beat), "control loop", 0);
	for (unsigned p = 0; p < control->plan.poll_cores; p++)
		if (control->poll_core[p])
			watchdog_judge(&dog->poll_core[p], poll_core_beat(control->poll_core[p]),
				"poll core", p);
}

/* Waits for the watchdog's next tick. Returns false if its thread must end. */
static bool watchdog_wait(struct watchdog *dog)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WATCHDOG_TICK_MS * 1000000l;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&dog->lock);
	while (!dog->stop &&
		pthread_cond_clockwait(&dog->wake, &dog->lock, CLOCK_MONOTONIC, &until) == 0)
		;
	stop = dog->stop;
	pthread_mutex_unlock(&dog->lock);
	return !stop;
}

static void *watchdog_main(void *argument)
{
	struct watchdog *dog = argument;

	prctl(PR_SET_NAME, "pc-watchdog");
	while (watchdog_wait(dog))
		watchdog_tick(dog);
	return NULL;
}

int watchdog_open(struct control *control)
{
	struct watchdog *dog = calloc(1, sizeof(*dog));
	int rc;

	if (!dog)
		return -ENOMEM;
	dog->control = control;
	pthread_mutex_init(&dog->lock, NULL);
	pthread_cond_init(&dog->wake, NULL);
	rc = thread_start(&dog->thread, watchdog_main, dog);
	if (rc) {
		pthread_cond_destroy(&dog->wake);
		pthread_mutex_destroy(&dog->lock);
		free(dog);
		return rc;
	}
	control->watchdog = dog;
	return 0;
}

void watchdog_close(struct control *control)
{
	struct watchdog *dog = control->watchdog;

	pthread_mutex_lock(&dog->lock);
	dog->stop = true;
	pthread_cond_signal(&dog->wake);
	pthread_mutex_unlock(&dog->lock);
	pthread_join(dog->thread, NULL);
	pthread_cond_destroy(&dog->wake);
	pthread_mutex_destroy(&dog->lock);
	free(dog);
	control->watchdog = NULL;
}
