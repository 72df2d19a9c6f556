/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl keys: records what the clients of this host ask for, as a trace that peercache-bench
 * policy reads (trace.h): a line for each call, with a number for each key. The numbers are a hash
 * of the key's hash with a secret that is made for this file and forgotten, so that they tell which
 * keys are equal and nothing else. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/sha.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "config/limits.h"
#include "engine/abi/asked.h"
#include "tools/common.h"
#include "tools/ctl.h"

#define PAUSE_NS 100000000L /* between two questions */
#define ID_BITS 52          /* a JSON number that every reader takes as it is */
#define LINE_BYTES (64 + 18ull * BATCH_MAX)

struct recording {
	const struct ctl_run *ctl;
	uint64_t secret[2];
	int fd;
	char *line;
	uint64_t began_ns, bytes, calls, keys, lost;
	bool full;
};

static volatile sig_atomic_t ended;

static void on_signal(int signal)
{
	ended = signal;
}

static uint64_t keys_hash(const uint64_t secret[2], uint64_t word)
{
	const uint64_t text[] = {secret[0], secret[1], word};
	unsigned char digest[SHA256_DIGEST_LENGTH];
	uint64_t hash;

	SHA256((const unsigned char *)text, sizeof(text), digest);
	memcpy(&hash, digest, sizeof(hash));
	return hash;
}

/* Appends r->line, all of it or nothing. */
static void line_write(struct recording *r, size_t bytes)
{
	if (r->bytes + bytes > r->ctl->max_bytes) {
		r->full = true;
		return;
	}
	for (size_t done = 0; done < bytes;) {
		ssize_t n = write(r->fd, r->line + done, bytes - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			n = errno;
			(void)!ftruncate(r->fd, (off_t)r->bytes);
			die("%s: %s; it has %" PRIu64 " calls", r->ctl->record, strerror((int)n),
				r->calls);
		}
		done += (size_t)n;
	}
	r->bytes += bytes;
	r->calls++;
}

static void call_record(struct recording *r, const uint64_t *word, size_t count)
{
	char *at = r->line;
	size_t keys = 0;

	at += sprintf(at, "{\"timestamp\": %" PRIu64 ", \"hash_ids\": [",
		(now_ns() - r->began_ns) / 1000000);
	for (size_t i = 0; i < count; i++)
		if (word[i])
			at += sprintf(at, "%s%" PRIu64, keys++ ? ", " : "",
				keys_hash(r->secret, word[i]) >> (64 - ID_BITS));
	at += sprintf(at, "]}\n");
	r->keys += keys;
	if (keys)
		line_write(r, (size_t)(at - r->line));
}

/* What one channel has written. A client may write anything: the rest of it is then lost. */
static void channel_record(struct recording *r, const uint64_t *word, size_t words)
{
	while (words && !r->full) {
		size_t count = (uint32_t)*word;

		if (count == 0 || count >= words || count > BATCH_MAX) {
			r->lost++;
			return;
		}
		r->lost += *word >> ASKED_LOST_SHIFT;
		call_record(r, word + 1, count);
		word += 1 + count;
		words -= 1 + count;
	}
}

/* What pc_asked() has returned. */
static void keys_record(struct recording *r, const uint64_t *word, size_t words)
{
	while (words > 1 && *word < words) {
		size_t count = *word;

		channel_record(r, word + 1, count);
		word += 1 + count;
		words -= 1 + count;
	}
	r->lost += words > 0;
}

/* Returns why it ended; NULL: the engine did. */
static const char *record(struct recording *r, struct pc *pc)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t *words;
	size_t count;

	while (!ended) {
		if (pc_asked(pc, r->ctl->gets, &words, &count))
			return NULL;
		keys_record(r, words, count);
		free(words);
		if (r->full)
			return "the file is full";
		if (now_ns() - r->began_ns >= r->ctl->seconds * 1000000000ull)
			return "the time is over";
		nanosleep(&pause, NULL);
	}
	return "a signal";
}

static void print_recording(const struct recording *r, const char *why)
{
	json_object *o;

	if (!r->ctl->json) {
		printf("%s: %" PRIu64 " calls, %" PRIu64 " keys, %" PRIu64 " bytes; %" PRIu64
		       " calls lost; ended: %s\n",
			r->ctl->record, r->calls, r->keys, r->bytes, r->lost, why);
		return;
	}
	o = json_object_new_object();
	add_text(o, "file", r->ctl->record);
	add_number(o, "calls", r->calls);
	add_number(o, "keys", r->keys);
	add_number(o, "bytes", r->bytes);
	add_number(o, "lost", r->lost);
	add_text(o, "ended", why);
	print_json(o, stdout);
}

int ctl_keys(struct ctl_run *ctl)
{
	const struct sigaction action = {.sa_handler = on_signal};
	struct recording r = {.ctl = ctl, .line = malloc(LINE_BYTES), .began_ns = now_ns()};
	const char *why;

	if (!ctl->record)
		die("keys: give --record FILE");
	if (!r.line || getrandom(r.secret, sizeof(r.secret), 0) != sizeof(r.secret))
		die("no memory, or no random numbers: %s", strerror(errno));
	if (ctl_open(ctl, &ctl->pc))
		return ctl_no_answer(ctl, pc_error());
	r.fd = open(ctl->record, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (r.fd < 0)
		die("%s: %s; give the name of a file that is not there", ctl->record,
			strerror(errno));
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	why = record(&r, ctl->pc);
	print_recording(&r, why ? why : pc_error());
	free(r.line);
	if (!why && !r.calls)
		unlink(ctl->record);
	if (close(r.fd))
		die("%s: %s", ctl->record, strerror(errno));
	return why ? 0 : CTL_NO_ANSWER;
}
