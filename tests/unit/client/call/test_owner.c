/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership of memory while the engine or the client is dead, stopped or late: page slots during a
 * copy, the caller's memory during READs, and a session whose requests fail.
 */
#include "config/clock.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/attach/memory.h"
#include "engine/client/attach/session.h"
#include "tests/emulated.h"
#include "tests/unit/client/rig_clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static uint32_t hold_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

static void hook(fake_op_hook *on_op)
{
	fake_lock(&fake);
	fake.on_op = on_op;
	fake_unlock(&fake);
}

/* ---- page slots ------------------------------------------------------------------------------ */

static unsigned char *guarded; /* second half of the copy's source; unreadable until the fault */
/* value of channel_header.copying when the copy reads `guarded`; set by on_fault() */
static uint64_t named;

static void on_fault(int signal)
{
	named = shm_load64(&ch->header->copying);
	mprotect(guarded, 4096, PROT_READ);
}

static void the_channel_names_the_slot_into_which_it_copies(void **state)
{
	struct sigaction action = {.sa_handler = on_fault}, before;
	unsigned char *from =
		mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct page_key key = fake_key("key-1");
	struct location at;

	fill("key-1", from, 8192);
	guarded = from + 4096;
	named = 0;
	assert_int_equal(mprotect(guarded, 4096, PROT_NONE), 0);
	assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
	assert_int_equal(set_one("key-1", from, 8192, PATIENCE_MS), PC_HIT);
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
	at = cache_find(ch, &key)->at;
	assert_true(named == slot_name(at.place, at.generation));
	assert_true(shm_load64(&ch->header->copying) == 0);
	munmap(from, 8192);
}

static void nothing_is_copied_after_the_engine_has_stopped_the_channel(void **state)
{
	static unsigned char from[PAGE_BYTES], before[FAKE_RAILS][1 << 20];

	fill("key-1", from, sizeof(from));
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	/* The channel holds credits, so it could copy the next page without a request. */
	assert_true(ch->credits > 0);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		memcpy(before[r], fake.node[FAKE_SELF].pool[r], sizeof(before[r]));
	shm_store(&ch->header->stopped, 1);
	fill("key-2", from, sizeof(from));
	assert_int_equal(set_one("key-2", from, sizeof(from), PATIENCE_MS), PC_GONE);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_memory_equal(before[r], fake.node[FAKE_SELF].pool[r], sizeof(before[r]));
}

/*
 * A child of fork() must not have the mapping of the pool: a slot that the parent had may hold
 * another page when the child writes it.
 */
static void a_child_of_fork_has_no_pool(void **state)
{
	int status;
	pid_t child;

	SKIP_EMULATED("its fork() copies what MADV_DONTFORK leaves out");
	child = fork();
	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		close(2); /* hides the sanitizer's report of the expected crash */
		_exit(*(volatile unsigned char *)pc->session->rail[0].pool & 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- a session that other channels use ------------------------------------------------------- */

static void a_reply_with_too_many_descriptors_fails_only_its_request(void **state)
{
	struct pc_channel *second = NULL;
	unsigned char at[5000];

	SKIP_EMULATED("it refuses a reply with too many descriptors as a whole");
	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	LET(surplus, ATTACH_FDS_MAX);
	assert_int_equal(pc_channel_open(pc, &second), -EMFILE);
	assert_non_null(strstr(pc_error(), "ulimit -n"));
	assert_null(second);
	LET(surplus, 0);
	assert_true(pc_attached(pc));
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(pc_channel_open(pc, &second), 0);
	assert_int_equal(SEEN(closes), 1); /* the engine closed the unusable channel */
	assert_int_equal(SEEN(hellos), 1);
	pc_channel_close(second);
}

static void a_late_reply_fails_only_its_request(void **state)
{
	struct session_call call = {.kind = ATTACH_CHANNEL_OPEN, .send_fd = -1, .timeout_ms = 20};
	struct pc_channel *second = NULL;
	unsigned char at[5000];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	LET(mute, true);
	assert_int_equal(session_ask(pc->session, &call), -ETIMEDOUT);
	assert_int_equal(session_ask(pc->session, &call), -ETIMEDOUT);
	assert_true(pc_attached(pc));
	LET(mute, false);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	/* The client did not send the second request. It closed the channel that the late reply to
	 * the first one brought. */
	assert_int_equal(pc_channel_open(pc, &second), 0);
	assert_int_equal(SEEN(closes), 1);
	assert_int_equal(SEEN(hellos), 1);
	pc_channel_close(second);
}

/* ---- an engine that hangs -------------------------------------------------------------------- */

static void calls_keep_their_deadlines_while_the_engine_hangs(void **state)
{
	void *at;

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	LET(mute, true);
	replace_engine();
	for (unsigned n = 0; n < 8; n += SEEN(connection) != -1u) {
		uint64_t start_ns = clock_monotonic_ns();

		assert_int_equal(exists_one("key-1", 100), PC_GONE);
		assert_true(elapsed_ms(start_ns) < 4000); /* the time-out of HELLO is 5 s */
	}
	LET(mute, false);
	until_attached();
}

static void pages_are_served_while_memory_is_registered_again(void **state)
{
	struct pc_channel *first = ch, *second;
	uint64_t staged;
	void *at;

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	assert_int_equal(pc_channel_open(pc, &second), 0);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	LET(stall_regions, true);
	replace_engine();
	for (uint64_t start_ns = clock_monotonic_ns(); get_one("key-1", at, 5000, 1000) != PC_HIT;)
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	assert_true(same("key-1", at, 0, 5000));
	assert_int_equal(counts().bytes_staged, 5000);
	/* The second channel notices the new engine only at this call, and serves pages too. */
	SEEN_SOON(stalled);
	ch = second;
	for (uint64_t start_ns = clock_monotonic_ns(); get_one("key-1", at, 5000, 1000) != PC_HIT;)
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	ch = first;
	assert_int_equal(SEEN(stalled), true);
	LET(stall_regions, false);
	for (uint64_t start_ns = clock_monotonic_ns();;) {
		staged = counts().bytes_staged;
		assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
		if (counts().bytes_staged == staged)
			break; /* READs go directly into registered memory again */
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	}
	assert_true(same("key-1", at, 0, 5000));
	pc_channel_close(second);
}

static void a_session_with_memory_is_closed_while_the_engine_hangs(void **state)
{
	uint64_t start_ns;
	void *at[8];

	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(pc_memory_alloc(pc, 4096, &at[i]), 0);
	LET(mute, true);
	start_ns = clock_monotonic_ns();
	pc_channel_close(ch);
	pc_close(pc);
	assert_true(elapsed_ms(start_ns) < 5000); /* the time-out of one range's removal is 600 s */
	ch = NULL;
	pc = NULL;
	LET(mute, false);
}

static void an_unusable_channel_is_closed_at_the_engine(void **state)
{
	struct pc_channel *other = NULL;
	unsigned closes;

	LET(bad_channels, true);
	assert_int_equal(pc_channel_open(pc, &other), -EPROTO);
	assert_non_null(strstr(pc_error(), "the engine's channel has version"));
	SEEN_SOON(closes);
	LET(closes, 0);
	replace_engine();
	for (uint64_t start_ns = clock_monotonic_ns(); !SEEN(closes);) {
		assert_int_equal(exists_one("key-1", 100), PC_GONE);
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	}
	closes = SEEN(closes);
	assert_true(closes <= 20); /* one close per attempt to attach, not per call */
	LET(bad_channels, false);
	until_attached();
}

/* The thread that attaches again must not delay pc_close() while it waits for the engine. */
static void closing_while_the_engine_hangs_does_not_wait_for_it(void **state)
{
	uint64_t start_ns;

	LET(mute, true);
	replace_engine();
	while (SEEN(connection) == -1u)
		assert_int_equal(exists_one("key-1", 10), PC_GONE);
	start_ns = clock_monotonic_ns();
	pc_channel_close(ch);
	pc_close(pc);
	assert_true(elapsed_ms(start_ns) < 4000); /* the time-out of HELLO is 5 s */
	ch = NULL;
	pc = NULL;
	LET(mute, false);
}

/* ---- READs in flight ------------------------------------------------------------------------- */

static struct {
	unsigned char *at; /* memory that the late READ writes */
	pid_t engine;      /* process that stands for the engine; 0: none, the engine drains */
	bool long_wait;    /* each wait for the engine takes its whole time, but not in this test */
	uint32_t waits;    /* number of waits for the engine, or of calls that have returned */
	uint32_t released; /* 1 after the READ has written */
	uint64_t end_ns;   /* when the engine's process was killed */
} late;

/* As the C library's; it sees the waits of wait_until_drained(), the only ones so long. */
__attribute__((visibility("default"))) int poll(struct pollfd *p, nfds_t count, int timeout_ms)
{
	const struct timespec t = {
		.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000l};

	if (count == 2 && timeout_ms == DRAIN_WARN_NS / 1000000) {
		__atomic_fetch_add(&late.waits, 1, __ATOMIC_SEQ_CST);
		if (late.long_wait && !shm_load_acquire(&late.released)) {
			rig_pass_ns(DRAIN_WARN_NS);
			return 0;
		}
	}
	return ppoll(p, count, timeout_ms < 0 ? NULL : &t, NULL);
}

/*
 * Simulates the end of an engine in this order: its socket closes, a READ in flight writes to the
 * caller's memory, then the client gets proof that no READ is left: `drained`, or the exit of the
 * engine's process.
 */
static void *die_with_a_read_in_flight(void *context)
{
	struct fake_channel mine;

	SEEN_SOON(held_count);
	fake_lock(&fake);
	mine = fake.channel[0];
	mine.memfd = dup(mine.memfd);
	mine.wake = dup(mine.wake);
	mine.base = mmap(NULL, mine.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mine.memfd, 0);
	fake_unlock(&fake);
	fake_die(&fake);
	while (__atomic_load_n(&late.waits, __ATOMIC_SEQ_CST) < 1u + late.long_wait)
		usleep(1000);
	usleep(20000); /* so long the call waits, at least */
	memset(late.at, 0xee, 5000);
	shm_store_release(&late.released, 1);
	late.end_ns = clock_monotonic_ns();
	if (late.engine)
		kill(late.engine, SIGKILL);
	else
		fake_drain(&mine);
	munmap(mine.base, mine.bytes);
	close(mine.memfd);
	close(mine.wake);
	return context;
}

static void get_until_released(void)
{
	pthread_t thread;
	uint32_t released;

	LET(no_drain, true);
	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	hook(hold_pages);
	shm_store(&late.released, 0);
	late.waits = 0;
	assert_int_equal(pthread_create(&thread, NULL, die_with_a_read_in_flight, NULL), 0);
	assert_int_equal(get_one("key-1", late.at, 5000, PATIENCE_MS), PC_GONE);
	released = shm_load_acquire(&late.released);
	__atomic_fetch_add(&late.waits, 2, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	assert_int_equal(released, 1);
	LET(no_drain, false);
}

static void a_get_returns_when_the_engine_has_drained_its_reads(void **state)
{
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, (void **)&late.at), 0);
	late.engine = 0;
	get_until_released();
}

static void a_long_wait_is_reported_on_stderr(void **state)
{
	int before = dup(2), log = memfd_create("stderr", MFD_CLOEXEC);
	char text[1024] = "";

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, (void **)&late.at), 0);
	late.engine = 0;
	late.long_wait = true;
	assert_int_equal(dup2(log, 2), 2);
	get_until_released();
	assert_int_equal(dup2(before, 2), 2);
	late.long_wait = false;
	assert_true(pread(log, text, sizeof(text) - 1, 0) > 0);
	assert_non_null(strstr(text, "waits for the engine"));
	close(before);
	close(log);
}

/* Returns how long the get waited from then on. */
static uint64_t engine_exits(uint32_t lent, uint32_t lent_ms)
{
	int before = fake.pidfd;
	uint64_t waited_ns;

	late.engine = fork();
	if (late.engine == 0) {
		/* Close the child's copies of all sockets: with them, a socket that the parent
		 * closes would stay open. */
		close_range(0, ~0u, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	LET(pidfd, (int)syscall(SYS_pidfd_open, late.engine, 0));
	replace_engine();
	until_attached();
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, (void **)&late.at), 0);
	shm_store(&fake.status->lent, lent);
	shm_store(&fake.status->lent_ms, lent_ms);
	get_until_released();
	waited_ns = clock_monotonic_ns() - late.end_ns;
	shm_store(&fake.status->lent, 0);
	assert_int_equal(waitpid(late.engine, NULL, 0), late.engine);
	close(fake.pidfd);
	LET(pidfd, before);
	return waited_ns;
}

static void a_get_returns_when_the_engines_process_has_exited(void **state)
{
	(void)engine_exits(0, 3600000);
}

/* The kernel keeps the queues of an engine that has ended while a process has their device. */
static void a_get_waits_longer_if_a_process_had_the_engines_nics(void **state)
{
	assert_true(engine_exits(1, 700) >= 700000000);
}

static void without_the_engines_pidfd_reads_go_through_staging(void **state)
{
	int before = fake.pidfd;
	uint64_t start_ns;
	pthread_t thread;
	void *at;

	fake_page(&fake, "key-1", FAKE_A, 0, 5000);
	LET(pidfd, -1);
	replace_engine();
	until_attached();
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, 5000));
	assert_int_equal(counts().bytes_staged, 5000);
	/* The call does not wait for a READ into staging: the block is abandoned together with the
	 * channel segment. */
	late.at = at;
	late.engine = 0;
	LET(no_drain, true);
	hook(hold_pages);
	shm_store(&late.released, 0);
	late.waits = 1; /* the READ does not wait for the call */
	assert_int_equal(pthread_create(&thread, NULL, die_with_a_read_in_flight, NULL), 0);
	start_ns = clock_monotonic_ns();
	assert_int_equal(get_one("key-1", at, 5000, PATIENCE_MS), PC_GONE);
	assert_true(elapsed_ms(start_ns) < PATIENCE_MS / 2);
	pthread_join(thread, NULL);
	LET(no_drain, false);
	LET(pidfd, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(the_channel_names_the_slot_into_which_it_copies),
		RIG_TEST(nothing_is_copied_after_the_engine_has_stopped_the_channel),
		RIG_TEST(a_child_of_fork_has_no_pool),
		RIG_TEST(a_reply_with_too_many_descriptors_fails_only_its_request),
		RIG_TEST(a_late_reply_fails_only_its_request),
		RIG_TEST(calls_keep_their_deadlines_while_the_engine_hangs),
		RIG_TEST(pages_are_served_while_memory_is_registered_again),
		RIG_TEST(a_session_with_memory_is_closed_while_the_engine_hangs),
		RIG_TEST(an_unusable_channel_is_closed_at_the_engine),
		RIG_TEST(closing_while_the_engine_hangs_does_not_wait_for_it),
		RIG_TEST(a_get_returns_when_the_engine_has_drained_its_reads),
		RIG_TEST(a_long_wait_is_reported_on_stderr),
		RIG_TEST(a_get_returns_when_the_engines_process_has_exited),
		RIG_TEST(a_get_waits_longer_if_a_process_had_the_engines_nics),
		RIG_TEST(without_the_engines_pidfd_reads_go_through_staging),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
