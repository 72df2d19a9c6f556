/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: opening, loss and return of the engine, registered memory, closing of channels. */
#include "config/clock.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/attach/memory.h"
#include "tests/unit/client/rig_clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void hook(fake_op_hook *on_op)
{
	fake_lock(&fake);
	LET(on_op, on_op);
	fake_unlock(&fake);
}

static uint32_t hold_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

static void opening_without_an_engine_names_the_socket(void **state)
{
	struct pc *other = NULL;

	assert_int_equal(
		pc_open(&(struct pc_options){.socket = "/nowhere/at.all"}, &other), -ENOENT);
	assert_null(other);
	assert_non_null(strstr(pc_error(), "/nowhere/at.all"));
	fake_die(&fake);
	assert_int_equal(pc_open(&(struct pc_options){.socket = fake.path}, &other), -ENOENT);
}

/* Lets time pass until *over is 1. */
static void *time_passes(void *over)
{
	while (!shm_load((uint32_t *)over)) {
		rig_pass_ms(100);
		usleep(1000);
	}
	return NULL;
}

/* pc_open() at a socket on which no process accepts. */
static int open_unanswered(const char *path)
{
	struct pc *other = NULL;
	uint32_t over = 0;
	pthread_t thread;
	int rc;

	assert_int_equal(pthread_create(&thread, NULL, time_passes, &over), 0);
	rc = pc_open(&(struct pc_options){.socket = path}, &other);
	shm_store(&over, 1);
	pthread_join(thread, NULL);
	assert_null(other);
	return rc;
}

static void an_engine_that_restarts_is_told_from_one_that_hangs(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), status;
	pid_t child;

	snprintf(address.sun_path, sizeof(address.sun_path), "%.90s.held", fake.path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	child = fork();
	if (child == 0)
		_exit(listen(fd, 4) == 0 ? 0 : 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* its engine has ended; this process holds the socket, as a service manager does */
	assert_int_equal(open_unanswered(address.sun_path), -EINPROGRESS);
	assert_non_null(strstr(pc_error(), address.sun_path));
	/* the next one listens, and does not answer */
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(open_unanswered(address.sun_path), -ETIMEDOUT);
	unlink(address.sun_path);
	close(fd);
}

/* A pool that no address space has room for, as in a process with a limit of its own. */
static void memory_that_cannot_be_mapped_is_told_as_that(void **state)
{
	struct pc *other = NULL;

	assert_int_equal(ftruncate(fake.pool_fd[1], 1ll << 60), 0);
	pc_channel_close(ch); /* the fake engine has one client */
	pc_close(pc);
	ch = NULL;
	pc = NULL;
	assert_int_equal(pc_open(&rig_options, &other), -ENOMEM);
	assert_non_null(strstr(pc_error(), "ulimit -v"));
	assert_int_equal(ftruncate(fake.pool_fd[1], 4095), 0);
	assert_int_equal(pc_open(&rig_options, &other), -EPROTO);
	assert_non_null(strstr(pc_error(), "of the same version"));
	assert_null(other);
	assert_int_equal(ftruncate(fake.pool_fd[1], FAKE_POOL_BYTES), 0);
}

static void invalid_arguments_are_refused(void **state)
{
	struct pc_batch *batch;
	struct pc_page page;
	enum pc_result result;
	void *at;

	assert_int_equal(pc_open(NULL, NULL), -EINVAL);
	assert_int_equal(pc_channel_open(NULL, &ch), -EINVAL);
	assert_int_equal(pc_get(NULL, &page, 1, 0, &result), -EINVAL);
	assert_int_equal(pc_get(ch, NULL, 1, 0, &result), -EINVAL);
	assert_int_equal(pc_set(ch, &page, 1, 0, NULL), -EINVAL);
	assert_int_equal(pc_exists(ch, &page, BATCH_MAX + 1, 0, &result), -EINVAL);
	assert_int_equal(pc_submit_get(ch, &page, 1, 0, &result, NULL), -EINVAL);
	assert_int_equal(pc_get(ch, NULL, 0, 0, NULL), 0);
	assert_int_equal(pc_submit_set(ch, NULL, 0, 0, NULL, &batch), 0);
	assert_true(pc_poll(batch));
	assert_int_equal(pc_memory_alloc(pc, 0, &at), -EINVAL);
	at = (void *)(UINTPTR_MAX & ~(uintptr_t)(PAGE_UNIT - 1));
	assert_int_equal(pc_memory_register(pc, at, 2 * PAGE_UNIT, fake.pool_fd[0], 0), -EINVAL);
	assert_int_equal(
		pc_memory_register(pc, (char *)at - PAGE_UNIT / 2, PAGE_UNIT, fake.pool_fd[0], 0),
		-EINVAL);
	assert_int_equal(pc_memory_release(pc, &page), -ENOENT);
	assert_true(strlen(pc_error()) > 0);
	pc_channel_close(NULL);
	pc_close(NULL);
	pc_wait(NULL);
}

static void the_report_is_the_engines_text(void **state)
{
	char *json = NULL;

	assert_int_equal(pc_report(pc, &json), 0);
	assert_string_equal(json, "{\"fake\": true}");
	free(json);
	assert_int_equal(pc_page_bytes_max(pc), 16u << 20);
	assert_true(pc_attached(pc));
}

static void a_channel_may_serve_another_name_space(void **state)
{
	static unsigned char at[5000];

	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	assert_int_equal(pc_channel_name_space(ch, "another model"), 0);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_MISS);
	assert_int_equal(pc_channel_name_space(ch, NULL), 0);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
	assert_int_equal(pc_channel_name_space(NULL, NULL), -EINVAL);
}

static void a_callers_own_memfd_is_registered(void **state)
{
	int fd = memfd_create("mine", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	unsigned char *at;

	assert_int_equal(ftruncate(fd, 3 << 20), 0);
	at = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 1 << 20);
	assert_int_equal(pc_memory_register(pc, at, 2 << 20, fd, 1 << 20), 0);
	assert_true(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
	assert_int_equal(pc_memory_register(pc, at + 4096, 4096, fd, 1 << 20), -EEXIST);
	assert_int_equal(pc_memory_register(pc, at + 4096, 4096, fd, 7), -EINVAL);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	assert_int_equal(get_one("key-1", at + 4000, 5000, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at + 4000, 0, 5000));
	assert_int_equal(counts().bytes_staged, 0);
	/* memory_find() refuses a range that ends one byte after the registered memory. */
	assert_null(memory_find(ch, at + (2 << 20) - 4999, 5000));
	assert_non_null(memory_find(ch, at + (2 << 20) - 5000, 5000));
	assert_int_equal(pc_memory_release(pc, at), 0);
	assert_int_equal(pc_memory_release(pc, at), -ENOENT);
	assert_int_equal(SEEN(regions_removed), 1);
	assert_int_equal(get_one("key-1", at + 4000, 5000, PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().bytes_staged, 5000);
	/* ranges may touch: first the lower half before the upper one, then the other way round */
	for (unsigned n = 0; n < 4; n++) {
		unsigned half = n == 1 || n == 2;

		assert_int_equal(
			pc_memory_register(pc, at + (half << 20), 1 << 20, fd, (1 + half) << 20),
			0);
		if (n % 2 == 0)
			continue;
		assert_int_equal(pc_memory_release(pc, at), 0);
		assert_int_equal(pc_memory_release(pc, at + (1 << 20)), 0);
	}
	munmap(at, 2 << 20);
	close(fd);
}

static void memory_that_the_engine_refuses_is_an_error_with_its_reason(void **state)
{
	void *at;

	LET(refuse_regions, ENOSPC);
	assert_int_equal(pc_memory_alloc(pc, 4096, &at), -ENOSPC);
	assert_non_null(strstr(pc_error(), "this region is refused"));
	LET(refuse_regions, 0);
	assert_int_equal(pc_memory_alloc(pc, 4096, &at), 0);
}

static void memory_in_use_is_not_released(void **state)
{
	struct pc_batch *batch;
	enum pc_result result;
	struct one o;
	void *at, *other;

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &other), 0);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	hook(hold_pages);
	one_page(&o, "key-1", at, 5000);
	assert_int_equal(pc_submit_get(ch, &o.page, 1, PATIENCE_MS, &result, &batch), 0);
	assert_int_equal(pc_memory_release(pc, at), -EBUSY);
	assert_int_equal(pc_memory_release(pc, other), 0);
	while (!SEEN(held_count))
		pc_poll(batch);
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	assert_int_equal(result, PC_HIT);
	assert_int_equal(pc_memory_release(pc, at), 0);
}

static void *die_soon(void *context)
{
	static const uint32_t never;

	rig_clock_seen(&never); /* so the other thread waits */
	fake_die(context);
	return NULL;
}

static void an_engine_that_dies_ends_the_batch_at_once(void **state)
{
	unsigned char at[2][5000];
	struct one o[2];
	struct pc_batch *batch;
	enum pc_result result[2];
	uint64_t start_ns;
	pthread_t thread;

	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	fake_page(&fake, "key-2", FAKE_SELF, 0, 5000);
	hook(hold_pages);
	one_page(&o[0], "key-1", at[0], 5000);
	one_page(&o[1], "key-2", at[1], 5000);
	assert_int_equal(pc_submit_get(ch, (struct pc_page[]){o[0].page, o[1].page}, 2,
				 4 * PATIENCE_MS, result, &batch),
		0);
	/* One page is being READ, and the other one is copied. */
	while (!SEEN(held_count) || result[1] == PC_PENDING)
		assert_false(pc_poll(batch));
	start_ns = clock_monotonic_ns();
	assert_int_equal(pthread_create(&thread, NULL, die_soon, &fake), 0);
	pc_wait(batch);
	assert_int_equal(result[0], PC_GONE);
	assert_int_equal(result[1], PC_HIT);
	/* ends long before the deadline of the batch */
	assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	assert_false(pc_attached(pc));
	start_ns = clock_monotonic_ns();
	assert_int_equal(exists_one("key-2", 4 * PATIENCE_MS), PC_GONE);
	assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	pthread_join(thread, NULL);
}

static void a_caller_that_only_polls_notices_the_engines_death(void **state)
{
	unsigned char at[5000];
	struct pc_batch *batch;
	enum pc_result result;
	uint64_t start_ns;
	struct one o;

	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	hook(hold_pages);
	one_page(&o, "key-1", at, 5000);
	assert_int_equal(pc_submit_get(ch, &o.page, 1, 4 * PATIENCE_MS, &result, &batch), 0);
	fake_die(&fake);
	start_ns = clock_monotonic_ns();
	while (!pc_poll(batch))
		/* ends long before the deadline of the batch */
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	assert_int_equal(result, PC_GONE);
}

static void channels_and_memory_work_again_after_the_engine_returns(void **state)
{
	struct pc_channel *second;
	unsigned added;
	void *at;

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	assert_int_equal(pc_channel_open(pc, &second), 0);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
	added = SEEN(regions_added);
	fake_die(&fake);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_GONE);
	/* The library attaches again and registers the memory with the new session. */
	fake_revive(&fake);
	rig_pass_ms(250);
	memset(at, 0, 5000);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, 5000));
	assert_int_equal(counts().bytes_staged, 0);
	assert_int_equal(SEEN(regions_added), added + 1);
	assert_true(pc_attached(pc));
	pc_channel_close(ch);
	ch = second; /* this channel attaches to the new session at its next call */
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(hellos), 2);
}

static void memory_and_channels_open_without_an_engine(void **state)
{
	struct pc_channel *second;
	void *at;

	fake_die(&fake);
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	assert_int_equal(pc_channel_open(pc, &second), 0);
	pc_channel_close(ch);
	ch = second;
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_GONE);
	fake_revive(&fake);
	rig_pass_ms(250);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().bytes_staged, 0);
}

static void *die_when_asked(void *context)
{
	SEEN_SOON(stalled);
	fake_die(context);
	return NULL;
}

static void a_channel_waits_if_the_engine_dies_while_it_opens_it(void **state)
{
	struct pc_channel *second;
	pthread_t thread;

	LET(opens_max, SEEN(opens));
	assert_int_equal(pthread_create(&thread, NULL, die_when_asked, &fake), 0);
	assert_int_equal(pc_channel_open(pc, &second), 0);
	pthread_join(thread, NULL);
	pc_channel_close(ch);
	ch = second;
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_GONE);
	LET(opens_max, UINT32_MAX);
	fake_revive(&fake);
	rig_pass_ms(250);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	until_attached();
}

static void with_no_reattach_a_lost_engine_stays_lost(void **state)
{
	const struct pc_options options = {.socket = fake.path, .no_reattach = true};

	pc_channel_close(ch);
	pc_close(pc);
	ch = NULL;
	pc = NULL;
	usleep(10000);
	assert_int_equal(pc_open(&options, &pc), 0);
	assert_int_equal(pc_channel_open(pc, &ch), 0);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
	fake_die(&fake);
	rig_pass_ns(LOOK_AROUND_NS);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_GONE);
	fake_revive(&fake);
	rig_pass_ms(250);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_GONE);
	assert_false(pc_attached(pc));
}

/* ---- channels of the next engine ------------------------------------------------------------- */

/* Waits until the attach thread has ended. */
static void attacher_ends(void)
{
	for (unsigned n = 0; n < PATIENCE_MS; n++, usleep(1000)) {
		bool runs;

		pthread_mutex_lock(&pc->lock);
		runs = pc->attacher.runs;
		pthread_mutex_unlock(&pc->lock);
		if (!runs)
			return;
	}
	fail_msg("the attach thread goes on");
}

static void an_engine_that_refuses_channels_is_asked_once_in_each_attempt(void **state)
{
	unsigned opens;

	LET(no_channels, true);
	replace_engine();
	for (unsigned n = 1; n <= 2; n++) {
		opens = SEEN(opens);
		assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_GONE);
		attacher_ends();
		assert_int_equal(SEEN(opens), opens + 1);
		rig_pass_ms(250);
	}
	LET(no_channels, false);
	until_attached();
}

/* The second channel has not noticed the loss of its engine when the first has adopted another. */
static void the_next_engine_opens_a_channel_for_each_and_no_more(void **state)
{
	struct pc_channel *second;
	unsigned opens;

	assert_int_equal(pc_channel_open(pc, &second), 0);
	opens = SEEN(opens);
	LET(opens_max, opens + 1);
	replace_engine();
	until_attached();
	SEEN_SOON(stalled);
	LET(opens_max, UINT32_MAX);
	attacher_ends();
	assert_int_equal(SEEN(opens), opens + 2);
	pc_channel_close(ch);
	ch = second;
	until_attached();
	assert_int_equal(SEEN(opens), opens + 2);
}

static unsigned open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void engines_that_die_and_return_leak_no_descriptor(void **state)
{
	unsigned before = 0;

	for (unsigned n = 0; n < 4; n++) {
		fake_die(&fake);
		rig_pass_ns(LOOK_AROUND_NS);
		assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_GONE);
		fake_revive(&fake);
		rig_pass_ms(250);
		assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
		fake_lock(&fake);
		if (n == 0)
			before = open_files();
		else
			assert_int_equal(open_files(), before);
		fake_unlock(&fake);
	}
}

/* ---- deadlines at an engine that does not answer --------------------------------------------- */

static void a_channel_and_memory_are_opened_within_their_time(void **state)
{
	uint64_t start_ns = clock_monotonic_ns();
	struct pc_channel *other = NULL;
	void *at = NULL;

	LET(mute, true);
	assert_int_equal(pc_channel_open_within(pc, 20, &other), -ETIMEDOUT);
	assert_int_equal(pc_memory_alloc_within(pc, 4096, 20, &at), -ETIMEDOUT);
	/* the limit of pc_channel_open() is 10 s, that of pc_memory_alloc() 600 s */
	assert_true(elapsed_ms(start_ns) < 9000);
	assert_non_null(strstr(pc_error(), "did not answer"));
	LET(mute, false);
	assert_int_equal(pc_channel_open_within(pc, PATIENCE_MS, &other), 0);
	assert_int_equal(pc_memory_alloc_within(pc, 4096, PATIENCE_MS, &at), 0);
	pc_channel_close(other);
}

static uint32_t registered;
static int register_rc;

static void *register_memory(void *context)
{
	void *at;

	register_rc = pc_memory_alloc(pc, 4096, &at);
	if (register_rc == -ETIMEDOUT && !strstr(pc_error(), "did not answer"))
		register_rc = 0;
	shm_store(&registered, 1);
	return NULL;
}

/* Registers memory while the engine works on it for `seconds`; returns the result. */
static int register_for(bool still, unsigned seconds)
{
	pthread_t thread;

	shm_store(&registered, 0);
	LET(stall_regions, true);
	LET(still, still);
	assert_int_equal(pthread_create(&thread, NULL, register_memory, NULL), 0);
	while (!SEEN(stalled))
		usleep(1000);
	for (; seconds && !shm_load(&registered); seconds -= 4) {
		rig_pass_ms(4000);
		rig_clock_seen(&registered);
	}
	LET(still, false);
	LET(stall_regions, false);
	pthread_join(thread, NULL);
	return register_rc;
}

static void a_registration_ends_when_the_engine_stands_and_not_while_it_works(void **state)
{
	assert_int_equal(register_for(false, 20), 0);
	assert_int_equal(register_for(true, 600), -ETIMEDOUT);
	assert_int_equal(register_for(true, 4), 0); /* a pause is no end */
}

static void closing_a_channel_with_a_batch_in_flight_waits_for_the_rail(void **state)
{
	unsigned char at[5000];
	struct pc_batch *batch;
	enum pc_result result;
	struct one o;

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	one_page(&o, "key-1", at, sizeof(at));
	assert_int_equal(pc_submit_get(ch, &o.page, 1, 10000, &result, &batch), 0);
	pc_channel_close(ch);
	ch = NULL;
	assert_int_not_equal(result, PC_PENDING);
}

/* The NIC writes into staging and not into the caller's memory, so closing need not wait for it. */
static void closing_a_channel_ends_staged_pages_before_their_deadline(void **state)
{
	unsigned char at[5000];
	struct pc_batch *batch;
	enum pc_result result;
	uint64_t start_ns;
	struct one o;

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	hook(hold_pages);
	one_page(&o, "key-1", at, sizeof(at)); /* unregistered memory: READ through staging */
	assert_int_equal(pc_submit_get(ch, &o.page, 1, 4 * PATIENCE_MS, &result, &batch), 0);
	while (!SEEN(held_count))
		pc_poll(batch);
	start_ns = clock_monotonic_ns();
	pc_channel_close(ch);
	ch = NULL;
	assert_int_equal(result, PC_TIMEOUT);
	/* far less than the deadline of the get */
	assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
}

static void sleeping_callers_and_rails_are_woken(void **state)
{
	unsigned char at[5000];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	for (unsigned n = 0; n < 50 || (n < 5000 && !SEEN(kicked)); n++) {
		uint64_t start_ns = clock_monotonic_ns();

		assert_int_equal(get_one("key-1", at, sizeof(at), 4 * PATIENCE_MS), PC_HIT);
		/* A wake-up has ended the call, not the deadline. */
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
		usleep(1000);
	}
	assert_true(SEEN(kicked) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(opening_without_an_engine_names_the_socket),
		RIG_TEST(an_engine_that_restarts_is_told_from_one_that_hangs),
		RIG_TEST(memory_that_cannot_be_mapped_is_told_as_that),
		RIG_TEST(invalid_arguments_are_refused),
		RIG_TEST(the_report_is_the_engines_text),
		RIG_TEST(a_channel_may_serve_another_name_space),
		RIG_TEST(a_callers_own_memfd_is_registered),
		RIG_TEST(memory_that_the_engine_refuses_is_an_error_with_its_reason),
		RIG_TEST(memory_in_use_is_not_released),
		RIG_TEST(an_engine_that_dies_ends_the_batch_at_once),
		RIG_TEST(a_caller_that_only_polls_notices_the_engines_death),
		RIG_TEST(channels_and_memory_work_again_after_the_engine_returns),
		RIG_TEST(memory_and_channels_open_without_an_engine),
		RIG_TEST(a_channel_waits_if_the_engine_dies_while_it_opens_it),
		RIG_TEST(with_no_reattach_a_lost_engine_stays_lost),
		RIG_TEST(an_engine_that_refuses_channels_is_asked_once_in_each_attempt),
		RIG_TEST(the_next_engine_opens_a_channel_for_each_and_no_more),
		RIG_TEST(engines_that_die_and_return_leak_no_descriptor),
		RIG_TEST(a_channel_and_memory_are_opened_within_their_time),
		RIG_TEST(a_registration_ends_when_the_engine_stands_and_not_while_it_works),
		RIG_TEST(closing_a_channel_with_a_batch_in_flight_waits_for_the_rail),
		RIG_TEST(closing_a_channel_ends_staged_pages_before_their_deadline),
		RIG_TEST(sleeping_callers_and_rails_are_woken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
