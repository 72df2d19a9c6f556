/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of plans: a synthetic topology, settings, the computed plan and captured log text.
 */
#ifndef TEST_PLAN_WORLD_H
#define TEST_PLAN_WORLD_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "config/log.h"
#include "numa/plan.h"
#include "tests/unit/numa/machine.h"

#define FOUR_CORES "synthetic:pack:1 [numa] core:4 pu:1"

static char text[4096]; /* text of the log lines, captured */
static struct settings s;
static struct topology *t;
static struct plan p; /* the plan that was computed last */

static inline int start(void **state)
{
	log_flush();
	log_test_capture(text, sizeof(text));
	t = NULL;
	memset(&p, 0x5a, sizeof(p));
	return settings_default(&s);
}

static inline int stop(void **state)
{
	log_test_capture(NULL, 0);
	topology_close(t);
	return 0;
}

/* Opens a topology (machine.h); closes the previous one. */
static inline void machine(const char *source)
{
	topology_close(t);
	assert_int_equal(machine_open(source, &t), 0);
}

static inline void set(const char *override)
{
	char err[SETTINGS_ERR_BYTES];

	assert_int_equal(settings_override(&s, override, err, sizeof(err)), 0);
}

static inline int make(void)
{
	return plan_make(t, &s, &p);
}

static inline void assert_logged(const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" does not say \"%s\"", text, part);
}

#endif
