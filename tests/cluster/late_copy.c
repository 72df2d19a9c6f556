/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session ends while one of its threads is in the middle of pc_set()'s copy. Other clients then
 * refill the pool, and only after that the copy continues. None of their pages may change.
 *
 * The copy is stopped by a source page that cannot be read: the SIGSEGV handler waits. Pages are
 * stored through the first socket and read back through the second, so a wrong page would be a
 * remote hit. Started by test_owner.py; prints JSON.
 *
 *   late_copy held SOCKET alone|fork|orphan
 *
 * prints "copying" when the copy is stopped, continues it after a line on stdin, prints "left" when
 * pc_set() has returned, and ends with stdin. fork: a child with copies of all descriptors lives
 * until then. orphan: that child outlives this process, until stdin ends; it writes its number
 * first. Started by test_restart.py.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/common.h"

#define PAGE_BYTES (256u << 10)
#define POOL_PAGES 256u
#define TIMEOUT_MS 20000u

static struct {
	unsigned char *source;
	sem_t stopped, go;
	uint64_t id; /* number of the page */
	enum pc_result result;
} copy;

/*
 * Runs in the middle of the copy; every other thread continues. It calls sem_wait(), which is not
 * async-signal-safe. That is allowed here because the interrupted code is a copy loop, which holds
 * no lock.
 */
static void on_fault(int signal)
{
	(void)signal;
	sem_post(&copy.stopped);
	while (sem_wait(&copy.go) && errno == EINTR)
		continue;
	mprotect(copy.source + PAGE_BYTES / 2, PAGE_BYTES / 2, PROT_READ | PROT_WRITE);
}

static void *set_one(void *context)
{
	struct pc_channel *channel = context;
	char key[KEY_TEXT_BYTES];
	struct pc_segment segment = {copy.source, PAGE_BYTES};
	struct pc_page page = {key, sizeof(key), &segment, 1};

	key_text(copy.id, key);
	if (pc_set(channel, &page, 1, TIMEOUT_MS, &copy.result))
		die("pc_set: %s", pc_error());
	return NULL;
}

/*
 * Shuts down the session's socket, which the library does not expose: it is the only SEQPACKET
 * socket of this process.
 */
static void end_session(void)
{
	for (int fd = 3; fd < 1024; fd++) {
		int type = 0;
		socklen_t bytes = sizeof(type);

		if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) && type == SOCK_SEQPACKET) {
			shutdown(fd, SHUT_RDWR);
			return;
		}
	}
	die("no session socket");
}

/* The reply to this request carries two descriptors, but this process may open only one more. */
static int open_with_one_descriptor(struct pc *pc)
{
	struct rlimit limit, before;
	struct pc_channel *channel;
	int rc, highest = dup(0);

	close(highest);
	getrlimit(RLIMIT_NOFILE, &before);
	limit = before;
	/*
	 * Lowers the limit of open files, so that only the lowest free descriptor number can still
	 * be used
	 */
	limit.rlim_cur = (rlim_t)highest + 1;
	setrlimit(RLIMIT_NOFILE, &limit);
	rc = pc_channel_open(pc, &channel);
	setrlimit(RLIMIT_NOFILE, &before);
	if (!rc)
		die("a channel was opened with one descriptor");
	return rc;
}

static void make(unsigned char *memory, unsigned round, unsigned i, char *key, bool fill)
{
	uint64_t id = 1000 + round * POOL_PAGES + i;

	key_text(id, key);
	if (fill)
		content_fill(memory, PAGE_BYTES, id);
}

static void store_round(const char *socket, unsigned round)
{
	struct pc *pc = open_session(socket, "late");
	struct pc_channel *channel;
	unsigned char *memory = malloc(PAGE_BYTES);
	char key[KEY_TEXT_BYTES];
	struct pc_segment segment = {memory, PAGE_BYTES};
	struct pc_page page = {key, sizeof(key), &segment, 1};
	enum pc_result result;

	if (pc_channel_open(pc, &channel))
		die("pc_channel_open: %s", pc_error());
	for (unsigned i = 0; i < POOL_PAGES; i++) {
		make(memory, round, i, key, true);
		if (pc_set(channel, &page, 1, TIMEOUT_MS, &result) || result != PC_HIT)
			die("page %u was not stored: %s", i, pc_result_name(result));
	}
	pc_channel_close(channel);
	pc_close(pc);
	free(memory);
}

static void read_all(const char *socket, unsigned rounds, uint64_t *ret_hits, uint64_t *ret_wrong)
{
	struct pc *pc = open_session(socket, "late");
	struct pc_channel *channel;
	void *memory;
	char key[KEY_TEXT_BYTES];
	enum pc_result result;

	if (pc_channel_open(pc, &channel) || pc_memory_alloc(pc, PAGE_BYTES, &memory))
		die("reader: %s", pc_error());
	for (unsigned i = 0; i < rounds * POOL_PAGES; i++) {
		struct pc_segment segment = {memory, PAGE_BYTES};
		struct pc_page page = {key, sizeof(key), &segment, 1};

		make(memory, 0, i, key, false);
		if (pc_get(channel, &page, 1, TIMEOUT_MS, &result))
			die("pc_get: %s", pc_error());
		*ret_hits += result == PC_HIT;
		*ret_wrong += result == PC_HIT && !content_is(memory, PAGE_BYTES, 1000 + i);
	}
	pc_channel_close(channel);
	pc_close(pc);
}

static struct pc_channel *start_copy(struct pc *pc, pthread_t *ret_thread)
{
	const struct sigaction action = {.sa_handler = on_fault};
	struct pc_channel *channel;

	copy.source =
		mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy.source == MAP_FAILED || pc_channel_open(pc, &channel))
		die("pc_channel_open: %s", pc_error());
	content_fill(copy.source, PAGE_BYTES, 1);
	mprotect(copy.source + PAGE_BYTES / 2, PAGE_BYTES / 2, PROT_NONE);
	sem_init(&copy.stopped, 0, 0);
	sem_init(&copy.go, 0, 0);
	sigaction(SIGSEGV, &action, NULL);
	pthread_create(ret_thread, NULL, set_one, channel);
	while (sem_wait(&copy.stopped) && errno == EINTR)
		continue;
	return channel;
}

static void told(void)
{
	char line[16];

	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

/* Has copies of all descriptors of its parent, and ends with it or, as an orphan, with stdin. */
static void child(bool orphan)
{
	pid_t pid = fork();

	if (pid && orphan)
		printf("%d\n", (int)pid);
	if (pid)
		return;
	if (!orphan)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!orphan || getchar() != EOF)
		if (!orphan)
			pause();
	_exit(0);
}

static void hold(const char *socket, const char *how)
{
	struct pc *pc = open_session(socket, "late");
	struct pc_channel *channel;
	pthread_t thread;

	copy.id = (uint64_t)getpid() << 32; /* no other process has stored this page */
	channel = start_copy(pc, &thread);
	if (!strcmp(how, "fork") || !strcmp(how, "orphan"))
		child(!strcmp(how, "orphan"));
	puts("copying");
	fflush(stdout);
	told();
	sem_post(&copy.go);
	pthread_join(thread, NULL);
	/* The next call notices that the engine was lost and leaves the old channel. */
	set_one(channel);
	puts("left");
	fflush(stdout);
	told();
}

int main(int argc, char **argv)
{
	bool by_descriptors = argc == 4 && !strcmp(argv[1], "descriptors");
	uint64_t hits = 0, wrong = 0;
	const unsigned rounds = 3;
	json_object *out = json_object_new_object();
	struct pc_channel *channel, *other;
	pthread_t thread;
	struct pc *pc;
	int opened = 0;

	if (argc == 4 && !strcmp(argv[1], "held")) {
		hold(argv[2], argv[3]);
		return 0;
	}
	if (argc != 4 || (!by_descriptors && strcmp(argv[1], "socket")))
		die("usage: late_copy descriptors|socket STORE_SOCKET READ_SOCKET");
	copy.id = 1;
	pc = open_session(argv[2], "late");
	channel = start_copy(pc, &thread);
	if (by_descriptors)
		opened = open_with_one_descriptor(pc);
	else
		end_session();
	for (unsigned round = 0; round < rounds; round++)
		store_round(argv[2], round);
	sem_post(&copy.go);
	pthread_join(thread, NULL);
	read_all(argv[3], rounds, &hits, &wrong);
	add_number(out, "hits", hits);
	add_number(out, "wrong", wrong);
	add_number(out, "attached", pc_attached(pc));
	json_object_object_add(out, "open", json_object_new_int(opened));
	json_object_object_add(out, "set", json_object_new_string(pc_result_name(copy.result)));
	/*
	 * Whether the request above ended the session or not, this process can open a channel
	 * again.
	 */
	opened = pc_channel_open(pc, &other);
	json_object_object_add(out, "open_again", json_object_new_int(opened));
	if (!opened)
		pc_channel_close(other);
	write_json(out, "-");
	json_object_put(out);
	pc_channel_close(channel);
	pc_close(pc);
	return 0;
}
