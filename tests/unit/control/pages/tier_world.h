/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of tier*.c with real pools and a real index over a disk that the test plays: it keeps the
 * requests until the test ends them. The test also plays the clients and the directory. One thread.
 */
#ifndef TESTS_TIER_WORLD_H
#define TESTS_TIER_WORLD_H

/* before the world's `control`, which its functions have as a parameter */
#include "engine/control/pages/tier_inner.h"

#include "engine/abi/crc32c.h"
#include "tests/unit/control/ctl_world.h"

#define PAGE (64u << 10)
#define SECOND 1000000000ull

enum { REQUESTS_MAX = 4096 };

static struct {
	struct disk_request *request[REQUESTS_MAX], *done[REQUESTS_MAX], *held[REQUESTS_MAX];
	unsigned requests, dones, helds;
	/* pages on disk; the content of page n is the byte n */
	bool has[REQUESTS_MAX];
	uint32_t length[REQUESTS_MAX];
	unsigned times[REQUESTS_MAX]; /* how often it was written: part of its name */
	struct disk_page lost[REQUESTS_MAX];
	unsigned losts;
	unsigned forgotten;     /* calls of disk_forget() */
	bool forgets_many, out; /* the path is out of service */
	int fd, open_rc;
	uint32_t opened;   /* by shm_load(): another thread sets it */
	bool works;        /* the disk ends writes at once */
	bool gone_at_once; /* a page leaves the disk when it is written */
	uint32_t mib;      /* its size */
} fake;

static struct disk *const fake_disk = (struct disk *)(void *)&fake;

static inline uint64_t number_of(const struct page_key *key)
{
	return key->word[1] - 1;
}

static inline void on_disk(uint64_t n)
{
	fake.has[n] = true;
	fake.length[n] = PAGE;
	fake.times[n]++;
}

/* The name of page n on disk. */
static inline struct disk_page named(uint64_t n)
{
	return (struct disk_page){.key = key_of(n),
		.place = place_make(PLACE_DISK, fake.times[n]),
		.generation = (uint32_t)n + 1,
		.length = fake.length[n]};
}

/* Page n leaves the disk. */
static inline void off_disk(uint64_t n)
{
	assert_true(fake.has[n]);
	fake.lost[fake.losts++] = named(n);
	fake.has[n] = false;
	eventfd_write(fake.fd, 1);
}

/* ---- the disk -------------------------------------------------------------------------------- */

int disk_open(const struct disk_options *options, struct disk **ret_disk)
{
	assert_int_equal(options->paths, 1);
	*ret_disk = fake.open_rc ? NULL : fake_disk;
	if (fake.open_rc)
		*options->failed = (struct disk_report){
			.paths = 1, .path = {{.state = DISK_PATH_OUT, .bytes_read = 7}}};
	shm_store(&fake.opened, 1);
	return fake.open_rc;
}

bool disk_find(struct disk *disk, const struct page_key *key, struct disk_page *ret_page)
{
	uint64_t n = number_of(key);

	if (n < REQUESTS_MAX)
		*ret_page = named(n);
	return n < REQUESTS_MAX && fake.has[n];
}

bool disk_forgets_many(struct disk *disk)
{
	return fake.forgets_many;
}

bool disk_forget(struct disk *disk, const struct page_key *key)
{
	uint64_t n = number_of(key);
	bool had = n < REQUESTS_MAX && fake.has[n];

	fake.forgotten++;
	if (had)
		off_disk(n);
	return had;
}

bool disk_named(struct disk *disk, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	uint64_t n = (uint64_t)generation - 1;

	if (n >= REQUESTS_MAX || !fake.has[n] || named(n).place != place)
		return false;
	*ret_key = named(n).key;
	return true;
}

static uint32_t slot_of(uint64_t n)
{
	struct page_key key = key_of(n);

	return map_slot_of(&key);
}

unsigned disk_slot(struct disk *disk, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages)
{
	unsigned n = 0;

	for (; *cursor < REQUESTS_MAX && n < max; ++*cursor)
		if (fake.has[*cursor] && slot_of(*cursor) == slot)
			ret_pages[n++] = named(*cursor);
	if (*cursor >= REQUESTS_MAX)
		*cursor = 0;
	return n;
}

unsigned disk_lost(struct disk *disk, unsigned max, struct disk_page *ret_pages)
{
	unsigned n = 0;

	while (n < max && fake.losts)
		ret_pages[n++] = fake.lost[--fake.losts];
	return n;
}

void disk_submit(struct disk *disk, struct disk_request *request)
{
	assert_true(fake.requests < REQUESTS_MAX);
	if (fake.works && request->op == DISK_WRITE) {
		on_disk(number_of(&request->key));
		request->status = DISK_OK;
		fake.done[fake.dones++] = request;
		eventfd_write(fake.fd, 1);
		return;
	}
	fake.request[fake.requests++] = request;
}

struct disk_request *disk_reap(struct disk *disk)
{
	eventfd_t value;

	if (fake.helds) {
		fake.held[--fake.helds]->held = true;
		return fake.held[fake.helds];
	}
	if (fake.dones) {
		fake.done[--fake.dones]->held = false;
		return fake.done[fake.dones];
	}
	(void)eventfd_read(fake.fd, &value);
	if (!control.tier) { /* a stop waits for a disk that hangs */
		eventfd_write(fake.fd, 1);
		now += SECOND / 10;
		clock_test_set(now);
	}
	return NULL;
}

int disk_fd(const struct disk *disk)
{
	return fake.fd;
}

void disk_report(struct disk *disk, struct disk_report *ret_report)
{
	*ret_report = (struct disk_report){.paths = 1,
		.path = {{.state = fake.out ? DISK_PATH_OUT : DISK_PATH_IN_SERVICE,
			.segments = fake.mib}}};
}

int disk_close(struct disk *disk)
{
	return 0;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static struct status_segment *status;
static struct client client;

static inline void tier_turns(void)
{
	unsigned work, left = 10000;

	do {
		assert_true(left--); /* a turn that always finds work would be the last */
		work = tier_turn(&control);
		turns();
	} while (work);
}

static inline void events(void)
{
	event_base_loop(control.base, EVLOOP_NONBLOCK);
	tier_turns();
}

/* Time passes; the timer of deadlines fires. */
static inline void wait_for(uint64_t ns)
{
	pass_time(ns);
	net_defer(control.tier->tick);
	events();
}

/* The path that has the request leaves service, and its device does not return it. */
static inline void hold(struct disk_request *request)
{
	fake.held[fake.helds++] = request;
	eventfd_write(fake.fd, 1);
	events();
}

/* All I/O that has begun is on paths that leave service now. */
static inline void hold_all(void)
{
	for (unsigned i = fake.requests; i-- > 0;) /* the oldest is returned first */
		if (!fake.request[i]->held)
			fake.held[fake.helds++] = fake.request[i];
	eventfd_write(fake.fd, 1);
	events();
}

static inline int disk_setup(void **state)
{
	setup(state);
	memset(&fake, 0, sizeof(fake));
	fake.fd = eventfd(0, EFD_NONBLOCK);
	fake.mib = 1000;
	status = calloc(1, sizeof(*status));
	control.status = status;
	strcpy(settings.disk_paths, "/nowhere");
	settings.disk_segment_bytes = 1 << 20;
	settings.disk_timeout_ms = 1000;
	assert_int_equal(tier_open(&control), 0);
	while (control.tier->state == TIER_OPENING)
		event_base_loop(control.base, EVLOOP_ONCE);
	assert_int_equal(shm_load(&status->disk), 1);
	client_open(&client, 3);
	return 0;
}

static inline int disk_teardown(void **state)
{
	client_close(&client);
	tier_close(&control);
	close(fake.fd);
	free(status);
	return teardown(state);
}

static inline unsigned count(enum disk_op op)
{
	unsigned n = 0;

	for (unsigned i = 0; i < fake.requests; i++)
		n += fake.request[i]->op == op;
	return n;
}

/* Ends a request as a disk would: a read delivers the bytes of the page. */
static inline void end_request(struct disk_request *request, enum disk_status result)
{
	uint64_t n = number_of(&request->key);
	unsigned i = 0;

	while (fake.request[i] != request)
		assert_true(++i < fake.requests);
	if (request->op == DISK_READ) {
		memset(request->data, (int)n, request->length);
		request->crc = crc32c(0, request->data, request->length);
	}
	if (request->op == DISK_WRITE && result == DISK_OK && request->forgotten)
		result = DISK_EXISTS;
	if (request->op == DISK_WRITE && result == DISK_OK) {
		assert_int_equal(((unsigned char *)request->data)[0], (unsigned char)n);
		on_disk(n);
		fake.length[n] = request->length;
		fake.has[n] = !fake.gone_at_once;
	}
	request->status = result;
	memmove(&fake.request[i], &fake.request[i + 1],
		(--fake.requests - i) * sizeof(fake.request[0]));
	fake.done[fake.dones++] = request;
	eventfd_write(fake.fd, 1);
	events();
}

/* Ends the oldest request of this kind. */
static inline void end_one(enum disk_op op, enum disk_status result)
{
	unsigned i = 0;

	while (i < fake.requests && fake.request[i]->op != op)
		i++;
	assert_true(i < fake.requests);
	end_request(fake.request[i], result);
}

static inline void request(uint64_t n, bool exists, uint64_t timeout_ns)
{
	put(&client, (struct ctl_op){.kind = CTL_PROMOTE,
			     .cookie = n,
			     .count = exists,
			     .key = key_of(n),
			     .length = PAGE,
			     .deadline_ns = now + timeout_ns});
	turns();
	tier_turns();
}

static inline struct ctl_done answered(uint64_t n)
{
	struct ctl_done done = {.kind = 0};

	assert_true(got(&client, &done));
	assert_int_equal(done.kind, CTL_PROMOTE);
	assert_int_equal(done.cookie, n);
	return done;
}

static inline void not_answered(void)
{
	struct ctl_done done;

	assert_false(got(&client, &done));
}

static inline unsigned char *bytes_at(uint32_t place)
{
	return (unsigned char *)pool_memory(control.rail[place_rail(place)].pool)->base +
	       place_offset(place);
}

/* Publishes a page of a batch of its own, whose deadline no other one has. */
static inline void publish_alone(uint64_t n, const struct ctl_done *at)
{
	memset(bytes_at(at->place), (int)n, PAGE);
	put(&client, (struct ctl_op){.kind = CTL_PUBLISH,
			     .count = 1,
			     .key = key_of(n),
			     .place = at->place,
			     .generation = at->generation,
			     .length = PAGE,
			     .deadline_ns = now + SECOND + n});
	assert_int_equal(get_one(&client).status, OP_HIT);
	tier_turns();
}

/* Fills both pools with pages from number `n` on. `works`: the disk writes what it gets. */
static inline unsigned fill_pools(uint64_t n, bool works)
{
	uint64_t first = n;

	for (uint8_t rail = 0; rail < RAILS; rail++) {
		uint32_t free = pool_free(control.rail[rail].pool, PAGE);

		while (free--) {
			struct ctl_done credit = take(&client, rail, PAGE);

			assert_int_equal(credit.status, OP_HIT);
			publish_alone(n++, &credit);
			assert_true(control.tier->spill_bytes <= control.tier->spill_bytes_max);
			while (works && count(DISK_WRITE))
				end_one(DISK_WRITE, DISK_OK);
		}
	}
	return (unsigned)(n - first);
}

static inline bool in_memory(uint64_t n)
{
	struct page_key key = key_of(n);

	return index_find(control.index, &key);
}

#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, disk_setup, disk_teardown)

#endif
