/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common setup of the client's unit tests. RIG_TEST(f) runs a test with a fake engine, a session
 * `pc` in the namespace "tests" and a channel `ch`. The helpers move one page in one call.
 */
#ifndef TESTS_CLIENT_RIG_H
#define TESTS_CLIENT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/clock.h"
#include "engine/client/attach/attach.h"
#include "engine/client/call/call.h"
#include "engine/client/rings/channel.h"
#include "tests/unit/client/fake.h"

#define PAGE_BYTES 20480u
/* deadline of calls that must succeed, ms; long enough for a slow machine */
#define PATIENCE_MS 20000u

static struct fake fake;
/* Options of the session: a test of the comparison with CRCs sets `verify` before rig_setup(). */
static struct pc_options rig_options = {.name_space = "tests", .verify = PC_VERIFY_NEVER};
static struct pc *pc;
static struct pc_channel *ch;

/* Reads a field of the fake engine under its lock, because its thread also uses it. */
#define SEEN(field)                                                                                \
	({                                                                                         \
		fake_lock(&fake);                                                                  \
		unsigned seen_ = fake.field;                                                       \
		fake_unlock(&fake);                                                                \
		seen_;                                                                             \
	})
/* Sets a field of the fake engine under its lock. */
#define LET(field, value)                                                                          \
	do {                                                                                       \
		fake_lock(&fake);                                                                  \
		fake.field = (value);                                                              \
		fake_unlock(&fake);                                                                \
	} while (0)

static int rig_setup(void **state)
{
	fake_start(&fake);
	pc = NULL;
	ch = NULL;
	rig_options.socket = fake.path;
	assert_int_equal(pc_open(&rig_options, &pc), 0);
	assert_int_equal(pc_channel_open(pc, &ch), 0);
	return 0;
}

static int rig_teardown(void **state)
{
	pc_channel_close(ch);
	pc_close(pc);
	fake_stop(&fake);
	return 0;
}

/* A page of one segment, with the storage for its key and its segment. */
struct one {
	char name[64];
	struct pc_segment segment;
	struct pc_page page;
};

/* Fills *o for the key `name` and the memory at `base`. Returns the page in it. */
static inline struct pc_page *one_page(struct one *o, const char *name, void *base, size_t bytes)
{
	snprintf(o->name, sizeof(o->name), "%.63s", name);
	o->segment = (struct pc_segment){base, bytes};
	o->page = (struct pc_page){.key = o->name,
		.key_bytes = strlen(o->name),
		.segments = &o->segment,
		.segment_count = 1};
	return &o->page;
}

/* Fills the buffer with the bytes that fake_page() gives to the page `name`. */
static inline void fill(const char *name, unsigned char *at, uint32_t bytes)
{
	for (uint32_t k = 0; k < bytes; k++)
		at[k] = fake_byte(name, k);
}

/* Compares `bytes` bytes with those of the page `name` from offset `from` on. */
static inline bool same(const char *name, const unsigned char *at, uint32_t from, uint32_t bytes)
{
	for (uint32_t k = 0; k < bytes; k++)
		if (at[k] != fake_byte(name, from + k))
			return false;
	return true;
}

static inline enum pc_result get_one(
	const char *name, void *base, size_t bytes, unsigned timeout_ms)
{
	struct one o;
	enum pc_result result = PC_PENDING;

	assert_int_equal(pc_get(ch, one_page(&o, name, base, bytes), 1, timeout_ms, &result), 0);
	return result;
}

static inline enum pc_result set_one(
	const char *name, void *base, size_t bytes, unsigned timeout_ms)
{
	struct one o;
	enum pc_result result = PC_PENDING;

	assert_int_equal(pc_set(ch, one_page(&o, name, base, bytes), 1, timeout_ms, &result), 0);
	return result;
}

static inline enum pc_result exists_one(const char *name, unsigned timeout_ms)
{
	struct one o;
	enum pc_result result = PC_PENDING;

	assert_int_equal(pc_exists(ch, one_page(&o, name, NULL, 0), 1, timeout_ms, &result), 0);
	return result;
}

/* Waits until the field of the fake engine is nonzero. Ends the program after about PATIENCE_MS. */
#define SEEN_SOON(field)                                                                           \
	do {                                                                                       \
		for (unsigned n_ = 0; !SEEN(field); n_++, usleep(1000))                            \
			if (n_ == PATIENCE_MS) {                                                   \
				fprintf(stderr, "%s: " #field " is still 0\n", __func__);          \
				abort();                                                           \
			}                                                                          \
	} while (0)

/* Counters of `ch`. */
static inline struct pc_counts counts(void)
{
	struct pc_counts c;

	pc_channel_counts(ch, &c);
	return c;
}

static inline struct pc_verify_counts verified(void)
{
	struct pc_verify_counts c;

	pc_channel_verify_counts(ch, &c);
	return c;
}

static inline unsigned elapsed_ms(uint64_t since_ns)
{
	return (unsigned)((clock_monotonic_ns() - since_ns) / 1000000);
}

#define RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

#endif
