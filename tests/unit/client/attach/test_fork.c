/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork(): a child that uses, closes or keeps what it inherits harms neither itself nor its parent.
 * A child tells by its exit status which line was wrong; it is killed when it hangs.
 */
#include "config/clock.h"
#include "engine/client/rings/channel.h"
#include "engine/client/attach/session.h"
#include "tests/unit/client/rig.h"
#include "tests/emulated.h"
#include "tests/sanitized.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 300

/* Ends the child with the number of the line, 8 bits of it, unless `it` is true. */
#define CHECK(it)                                                                                  \
	do {                                                                                       \
		if (!(it))                                                                         \
			_exit((__LINE__ & 0xff) | 1);                                              \
	} while (0)

/* Runs `action` in a child; returns its wait status, 0 if all was right. */
static int in_child(void (*action)(void))
{
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		alarm(PATIENCE_MS / 1000);
		action();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static unsigned char page[PAGE_BYTES];
static void *registered;
static struct pc_batch *batch;
static enum pc_result batch_result;

static uint32_t hold_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

static enum pc_result child_call(__typeof__(pc_get) *call, const char *name)
{
	enum pc_result result = PC_PENDING;
	struct one o;

	CHECK(call(ch, one_page(&o, name, page, sizeof(page)), 1, PATIENCE_MS, &result) == 0);
	return result;
}

static void use(void)
{
	struct pc_channel *more = NULL;
	char *json = NULL;
	void *memory;

	CHECK(child_call(pc_get, "key-1") == PC_GONE);
	CHECK(child_call(pc_set, "key-2") == PC_GONE);
	CHECK(child_call(pc_exists, "key-1") == PC_GONE);
	CHECK(child_call(pc_remove, "key-1") == PC_GONE);
	CHECK(!pc_attached(pc) && pc_page_bytes_max(pc) == 0);
	CHECK(pc_report(pc, &json) == -ENOTCONN && strstr(pc_error(), "fork()"));
	CHECK(pc_explain(ch, "key-1", 5, 0, &json) == -ENOTCONN && strstr(pc_error(), "fork()"));
	CHECK(pc_memory_alloc(pc, 1 << 20, &memory) == -ENOTCONN && strstr(pc_error(), "fork()"));
	CHECK(pc_channel_open(pc, &more) == 0);
	pc_channel_close(more);
	CHECK(pc_memory_release(pc, registered) == 0 || strstr(pc_error(), "in flight"));
}

static void close_all(void)
{
	pc_channel_close(ch);
	pc_close(pc);
}

static void use_and_close(void)
{
	use();
	close_all();
}

static void wait_for_the_batch(void)
{
	pc_wait(batch);
	CHECK(batch_result == PC_GONE);
	close_all();
}

static void poll_the_batch(void)
{
	CHECK(pc_poll(batch));
	CHECK(batch_result == PC_GONE);
}

static void close_a_busy_channel(void)
{
	close_all();
	CHECK(batch_result == PC_GONE);
}

static void open_its_own(void)
{
	struct pc *own = NULL;

	/* the fake engine serves one client: it does not answer this one before it is closed */
	pc_close(pc);
	CHECK(pc_open(&(struct pc_options){.socket = "/nowhere/at.all"}, &own) == -ENOENT);
}

static void nothing(void)
{
}

static void a_child_harms_neither_itself_nor_its_parent(void **state)
{
	static void (*const action[])(void) = {nothing, use, close_all, use_and_close,
		wait_for_the_batch, poll_the_batch, close_a_busy_channel};
	unsigned char *mine;
	struct one o;

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &registered), 0);
	mine = registered;
	fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	for (unsigned k = 0; k < sizeof(action) / sizeof(action[0]); k++) {
		LET(on_op, hold_pages);
		memset(mine, 0, PAGE_BYTES);
		assert_int_equal(pc_submit_get(ch, one_page(&o, "key-1", mine, PAGE_BYTES), 1,
					 4 * PATIENCE_MS, &batch_result, &batch),
			0);
		while (!SEEN(held_count))
			pc_poll(batch);
		assert_int_equal(in_child(action[k]), 0);
		fake_lock(&fake);
		fake.on_op = NULL;
		fake_answer_held(&fake);
		fake_unlock(&fake);
		pc_wait(batch);
		assert_int_equal(batch_result, PC_HIT);
		assert_true(same("key-1", mine, 0, PAGE_BYTES));
		assert_int_equal(get_one("key-1", page, sizeof(page), PATIENCE_MS), PC_HIT);
	}
	assert_int_equal(in_child(open_its_own), 0);
	assert_int_equal(get_one("key-1", page, sizeof(page), PATIENCE_MS), PC_HIT);
	assert_true(pc_attached(pc));
	assert_int_equal(SEEN(hellos), 1);
	assert_int_equal(SEEN(closes), 0);
	assert_int_equal(SEEN(regions_removed), 0);
}

/* ---- what the child has of its own ----------------------------------------------------------- */

#define FDS 4

static int inherited_fd[FDS];
static unsigned char *pool;
static uint64_t pool_bytes;

static void have_no_descriptor(void)
{
	for (unsigned k = 0; k < FDS; k++)
		CHECK(fcntl(inherited_fd[k], F_GETFD) < 0 && errno == EBADF);
}

static void have_memory_where_the_pool_is(void)
{
	void *at = mmap(pool, pool_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	CHECK(at == pool);
	pool[0] = pool[pool_bytes - 1] = 7;
	close_all();
	CHECK(pool[0] == 7 && pool[pool_bytes - 1] == 7);
}

static void a_child_keeps_no_descriptor_and_no_memory_of_its_parent(void **state)
{
	inherited_fd[0] = ch->session->fd;
	inherited_fd[1] = ch->session->control_kick;
	inherited_fd[2] = ch->session->rail[0].kick;
	inherited_fd[3] = ch->wake;
	pool = ch->session->rail[0].pool;
	pool_bytes = ch->session->rail[0].map_bytes;
	assert_int_equal(in_child(have_no_descriptor), 0);
	assert_int_equal(in_child(have_memory_where_the_pool_is), 0);
	assert_int_equal(set_one("key-1", page, sizeof(page), PATIENCE_MS), PC_HIT);
}

/* ---- beside threads -------------------------------------------------------------------------- */

static uint32_t stop;
static unsigned moved;

static void *move(void *context)
{
	static unsigned char other[PAGE_BYTES];
	enum pc_result result;
	struct one o;

	while (!shm_load(&stop)) {
		struct pc_channel *mine = NULL;
		void *memory = NULL;

		if (!pc_channel_open(pc, &mine) && !pc_memory_alloc(pc, PAGE_BYTES, &memory)) {
			one_page(&o, "key-1", moved % 2 ? memory : other, PAGE_BYTES);
			if (!pc_get(mine, &o.page, 1, PATIENCE_MS, &result) && result == PC_HIT)
				__atomic_fetch_add(&moved, 1, __ATOMIC_RELAXED);
			pc_memory_release(pc, memory);
		}
		pc_channel_close(mine);
	}
	return NULL;
}

/* Children of a thread whose neighbour opens, moves, registers and closes at that moment. */
static void a_fork_beside_a_busy_thread_leaves_no_lock_and_no_half_list(void **state)
{
	pthread_t thread;
	unsigned before;
	int wrong = 0;

	SKIP_EMULATED("it has no memory for hundreds of forks beside a thread");
	/* as of gcc 12 and clang 14: fork() takes no lock of its malloc(), unlike glibc's */
	if (ADDRESS_SANITIZED) {
		print_message("skipped: under AddressSanitizer a child hangs in calloc() if "
			      "another thread was in it\n");
		skip();
	}
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &registered), 0);
	fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	shm_store(&stop, 0);
	assert_int_equal(pthread_create(&thread, NULL, move, NULL), 0);
	while (!__atomic_load_n(&moved, __ATOMIC_RELAXED))
		usleep(1000);
	for (unsigned n = 0; n < FORKS && !wrong; n++)
		wrong = in_child(n % 2 ? use_and_close : close_all);
	before = __atomic_load_n(&moved, __ATOMIC_RELAXED);
	while (!wrong && __atomic_load_n(&moved, __ATOMIC_RELAXED) < before + 10)
		usleep(1000);
	shm_store(&stop, 1);
	pthread_join(thread, NULL);
	assert_int_equal(wrong, 0);
	assert_int_equal(SEEN(hellos), 1);
}

/* The attach thread waits for an engine that does not answer; the child has only its own thread. */
static void a_child_does_not_wait_for_the_attach_thread_of_its_parent(void **state)
{
	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &registered), 0);
	fake_die(&fake);
	while (exists_one("key-1", 10) != PC_GONE)
		usleep(1000);
	LET(mute, true);
	fake_revive(&fake);
	while (!SEEN(connection + 1)) {
		assert_int_equal(exists_one("key-1", 10), PC_GONE);
		usleep(1000);
	}
	assert_int_equal(in_child(use_and_close), 0);
	LET(mute, false);
	for (uint64_t start_ns = clock_monotonic_ns(); exists_one("key-1", 1000) != PC_MISS;)
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
}

/* ---- locks at a fork ------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t *lock;
	pid_t forker; /* the thread that forks */
	uint32_t held, forked;
	bool waited; /* the fork had not returned while the lock was held */
} holder;

/* The state of a thread of this process, as /proc tells it: 'S' sleeps. */
static char thread_state(pid_t thread)
{
	char path[64], line[512] = "", *end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_non_null(fgets(line, sizeof(line), file));
	fclose(file);
	end = strrchr(line, ')');
	assert_non_null(end);
	return end[2];
}

/* Holds the lock until the thread that forks sleeps, as it does when it waits for the lock. */
static void *hold_lock(void *context)
{
	pthread_mutex_lock(holder.lock);
	shm_store(&holder.held, 1);
	while (!shm_load(&holder.forked) && thread_state(holder.forker) != 'S')
		usleep(100);
	holder.waited = !shm_load(&holder.forked);
	pthread_mutex_unlock(holder.lock);
	/* a thread that ends allocates and frees: not beside the fork */
	while (!shm_load(&holder.forked))
		usleep(100);
	return context;
}

static void mark_forked(void)
{
	shm_store(&holder.forked, 1);
}

static void attach_and_close(void)
{
	void *memory;

	CHECK(!pc_attached(pc));
	(void)pc_memory_alloc(pc, 4096, &memory); /* takes both locks */
	pc_channel_close(ch);
	pc_close(pc);
}

/* The table of a session that another thread changes at the fork is whole in the child. */
static void a_fork_waits_for_a_thread_that_changes_the_session(void **state)
{
	pthread_t thread;
	pid_t child;
	int status = -1;

	memset(&holder, 0, sizeof(holder));
	holder.lock = &pc->lock;
	holder.forker = (pid_t)gettid();
	assert_int_equal(pthread_create(&thread, NULL, hold_lock, NULL), 0);
	while (!shm_load(&holder.held))
		shm_pause();
	child = fork();
	if (child == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		alarm(PATIENCE_MS / 1000);
		attach_and_close();
		_exit(0);
	}
	mark_forked();
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(holder.waited);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(pc_attached(pc)); /* the parent's locks are free */
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
}

/* A request may take long: the fork does not wait for it, and the child gets a lock of its own. */
static void a_child_does_not_wait_for_a_request_of_its_parent(void **state)
{
	int status;

	pthread_mutex_lock(&pc->wire);
	status = in_child(attach_and_close);
	pthread_mutex_unlock(&pc->wire);
	assert_int_equal(status, 0);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_child_harms_neither_itself_nor_its_parent),
		RIG_TEST(a_child_keeps_no_descriptor_and_no_memory_of_its_parent),
		RIG_TEST(a_child_does_not_wait_for_the_attach_thread_of_its_parent),
		RIG_TEST(a_fork_beside_a_busy_thread_leaves_no_lock_and_no_half_list),
		RIG_TEST(a_fork_waits_for_a_thread_that_changes_the_session),
		RIG_TEST(a_child_does_not_wait_for_a_request_of_its_parent),
	};

	/* a child may have taken the answers that the parent awaits */
	alarm(6 * PATIENCE_MS / 1000);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
