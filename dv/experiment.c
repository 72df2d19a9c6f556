/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The experiments of dv/experiment.h, on one connection between two ports or a port and itself.
 * Each has a row in experiments[]: the assumption, the promise that it carries, what to do where it
 * does not hold. The caller's thread posts and polls; writer_run() is a thread of its own.
 */
#include "dv/experiment.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/clock.h"
#include "dv/hot.h"
#include "dv/setup.h"

#define LAB_BYTES (2u << 20)  /* of the memory that is READ, and of that it is READ to */
#define LAB_DEPTH 64u         /* as QP_DEPTH */
#define LAB_QPS 256u          /* that one port needs for 32 peers with the most QPs */
#define TAKE_NS 8000000000ull /* in which a READ ends, also to a peer that is gone */
#define LINE 64u
#define PAYLOAD 4096u     /* bytes that the writer writes, from offset 0 on */
#define HEAD PAYLOAD      /* offset of the word that it writes before them */
#define WHOLE (2 * HEAD)  /* offset of an 8-byte word of two equal halves */
#define SAMPLES_MAX 4096u /* of latencies */
#define NONE (-1)         /* in place of a syndrome: there was no completion */

struct lab {
	struct dv_device *device[2];
	struct dv_cq cq[2];
	struct dv_qp *qp[2];
	struct dv_sq *sq[2];
	struct dv_mr source[2], sink[2]; /* the same memory, registered with each device */
	uint8_t *from, *to;
	int memfd;
	unsigned asker; /* the end that READs */
	bool steps;
	const struct dv_experiment *options;
	/* of the experiment that runs */
	uint64_t tries, against;
	char text[320], figures[160];
};

enum answer { NO, YES, UNKNOWN, FACT };

__attribute__((format(printf, 2, 3))) static void tell(struct lab *lab, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(lab->text, sizeof(lab->text), format, arguments);
	va_end(arguments);
}

/* ---- a connection ---------------------------------------------------------------------------- */

static void pair_close(struct lab *lab)
{
	for (unsigned i = 0; i < 2; i++) {
		if (lab->qp[i])
			(void)dv_qp_kill(lab->qp[i]);
		dv_qp_destroy(lab->qp[i]);
		lab->qp[i] = NULL;
		if (lab->cq[i].buf)
			dv_cq_destroy(lab->device[i], &lab->cq[i]);
		lab->cq[i] = (struct dv_cq){.buf = NULL};
	}
	lab->asker = 0;
}

/* Makes a new connection in place of the last one. */
static int pair_open(struct lab *lab)
{
	struct dv_address address[2];
	int rc = 0;

	pair_close(lab);
	for (unsigned i = 0; i < 2 && rc == 0; i++) {
		rc = dv_cq_create(lab->device[i], 4 * LAB_DEPTH, &lab->cq[i]);
		if (rc == 0)
			rc = dv_qp_create(
				lab->device[i], &lab->cq[i], LAB_DEPTH, &lab->qp[i], &lab->sq[i]);
		if (rc == 0)
			dv_qp_address(lab->qp[i], &address[i]);
	}
	for (unsigned i = 0; i < 2 && rc == 0; i++)
		rc = dv_qp_connect(lab->qp[i], &address[!i]);
	return rc;
}

/* Posts a READ of the memory at `offset` to the same offset, or to 0 if it is too long for that. */
static void ask(struct lab *lab, uint32_t offset, uint32_t bytes, uint32_t wrong_key, uint8_t flags)
{
	unsigned a = lab->asker;
	uint32_t to = offset + bytes > LAB_BYTES ? 0 : offset;
	const struct dv_sge sge = {(uint64_t)(uintptr_t)lab->to + to, bytes, lab->sink[a].lkey};

	dv_post(lab->sq[a], DV_READ, (uint64_t)(uintptr_t)lab->from + offset,
		lab->source[!a].rkey ^ wrong_key, &sge, 1, flags);
}

/* Waits for the next completion. Its syndrome, or NONE. */
static int take(struct lab *lab, struct dv_completion *ret)
{
	uint64_t end = 0;

	for (unsigned turn = 1; !dv_poll(&lab->cq[lab->asker], ret, 1); turn++) {
		if (lab->steps)
			for (unsigned i = 0; i < 2; i++)
				dv_step(lab->device[i]);
		if (turn % 256)
			continue;
		sched_yield();
		if (!end)
			end = clock_monotonic_ns() + TAKE_NS;
		if (clock_monotonic_ns() > end)
			return NONE;
	}
	return ret->syndrome;
}

/* Rings for what was posted, and waits for one completion of it. */
static int finish(struct lab *lab)
{
	struct dv_completion completion;
	int syndrome;

	dv_ring(lab->sq[lab->asker]);
	syndrome = take(lab, &completion);
	lab->sq[lab->asker]->ci = lab->sq[lab->asker]->pi;
	return syndrome;
}

static int one(struct lab *lab, uint32_t offset, uint32_t bytes)
{
	ask(lab, offset, bytes, 0, DV_CE_ALWAYS);
	return finish(lab);
}

/* A READ that should have succeeded did not: that ends the experiment, which has proved nothing. */
static enum answer broken(struct lab *lab, int syndrome)
{
	tell(lab, "a READ %s%s after %lu tries",
		syndrome == NONE ? "had no completion within 8 s" : "failed: ",
		syndrome == NONE ? "" : dv_syndrome((uint8_t)syndrome), lab->tries);
	return UNKNOWN;
}

static bool goes_on(const struct lab *lab, uint64_t begun)
{
	return lab->tries < lab->options->tries &&
	       (lab->tries % 64 ||
		       clock_monotonic_ns() - begun < lab->options->seconds * 1000000000ull);
}

/* ---- the payload and its completion ---------------------------------------------------------- */

static uint32_t word_at(const uint8_t *memory, uint32_t offset)
{
	return dv_hint_load((const uint32_t *)(const void *)(memory + offset));
}

static void mark(uint8_t *memory, uint32_t bytes, uint32_t value)
{
	for (uint32_t at = 0; at < bytes; at += LINE) {
		dv_hint_store((uint32_t *)(void *)(memory + at), value);
		dv_hint_store((uint32_t *)(void *)(memory + at + LINE - 4), value);
	}
}

static enum answer lands(struct lab *lab)
{
	static const uint32_t sizes[] = {LINE, 4096, 4096, 32768};
	uint64_t begun = clock_monotonic_ns();
	uint32_t last = 0;

	for (; goes_on(lab, begun); lab->tries++) {
		uint32_t bytes = sizes[lab->tries % 4], value = (uint32_t)lab->tries + 1;
		int syndrome;

		mark(lab->from, bytes, value);
		syndrome = one(lab, 0, bytes);
		if (syndrome)
			return broken(lab, syndrome);
		for (uint32_t at = bytes; at > 0; at -= LINE)
			if (word_at(lab->to, at - 4) != value ||
				word_at(lab->to, at - LINE) != value) {
				lab->against++;
				last = bytes - at;
				break;
			}
	}
	if (lab->against)
		tell(lab,
			"%lu of %lu completions came before all bytes; a late one was %u bytes before the end",
			lab->against, lab->tries, last);
	else
		tell(lab, "no completion of %lu came before its bytes", lab->tries);
	return lab->against ? NO : YES;
}

/* What was stored at both ends of a line is what the next READs see. */
static enum answer fresh(struct lab *lab)
{
	uint64_t begun = clock_monotonic_ns();

	for (; goes_on(lab, begun); lab->tries++) {
		uint32_t value = (uint32_t)lab->tries + 1, at = (value % 1024) * LINE;
		int syndrome;

		mark(lab->from + at, LINE, value);
		syndrome = one(lab, at, 4);
		if (syndrome == 0)
			syndrome = one(lab, at + LINE - 4, 4);
		if (syndrome)
			return broken(lab, syndrome);
		lab->against +=
			word_at(lab->to, at) != value || word_at(lab->to, at + LINE - 4) != value;
	}
	tell(lab, "%lu of %lu READs missed a store before them", lab->against, lab->tries);
	return lab->against ? NO : YES;
}

/* ---- order against a writer ------------------------------------------------------------------ */

struct writer {
	struct lab *lab;
	uint32_t stop;
};

/* Writes the head, then the payload behind it, each time with the next number. */
static void *writer_run(void *argument)
{
	struct writer *w = argument;
	uint8_t *at = w->lab->from;

	for (uint32_t n = 1; !dv_hint_load(&w->stop); n++) {
		dv_guard_open((uint32_t *)(void *)(at + HEAD), n);
		dv_hint_store64((uint64_t *)(void *)(at + WHOLE), (uint64_t)n << 32 | n);
		for (uint32_t line = 0; line < PAYLOAD; line += LINE)
			dv_guard_open((uint32_t *)(void *)(at + line), n);
	}
	return NULL;
}

enum race { RACE_AFTER, RACE_TOGETHER, RACE_WITHIN, RACE_WORDS };

/* One try. The syndrome of a READ that failed, else 0. */
static int race_once(struct lab *lab, enum race race)
{
	struct dv_completion first;
	int syndrome;

	if (race == RACE_WORDS) {
		syndrome = one(lab, WHOLE, 8);
		lab->against += word_at(lab->to, WHOLE) != word_at(lab->to, WHOLE + 4);
		return syndrome;
	}
	ask(lab, 0, race == RACE_WITHIN ? HEAD + 4 : PAYLOAD, 0, DV_CE_ALWAYS);
	if (race == RACE_WITHIN) {
		syndrome = finish(lab);
	} else if (race == RACE_AFTER) {
		syndrome = finish(lab);
		if (!syndrome)
			syndrome = one(lab, HEAD, 4);
	} else {
		ask(lab, HEAD, 4, 0, DV_CE_ALWAYS);
		dv_ring(lab->sq[lab->asker]);
		syndrome = take(lab, &first);
		if (!syndrome)
			syndrome = finish(lab);
	}
	if (syndrome)
		return syndrome;
	for (uint32_t line = 0; line < PAYLOAD; line += LINE)
		/* numbers wrap */
		if ((int32_t)(word_at(lab->to, line) - word_at(lab->to, HEAD)) > 0) {
			lab->against++;
			break;
		}
	return 0;
}

static enum answer race_run(struct lab *lab, enum race race)
{
	struct writer writer = {.lab = lab};
	uint64_t begun = clock_monotonic_ns();
	int syndrome = 0;
	pthread_t thread;

	memset(lab->from, 0, LAB_BYTES);
	if (pthread_create(&thread, NULL, writer_run, &writer)) {
		tell(lab, "no thread for the writer");
		return UNKNOWN;
	}
	for (; !syndrome && goes_on(lab, begun); lab->tries++)
		syndrome = race_once(lab, race);
	dv_hint_store(&writer.stop, 1);
	pthread_join(thread, NULL);
	if (syndrome)
		return broken(lab, syndrome);
	tell(lab, "%lu of %lu against it, beside a thread that writes", lab->against, lab->tries);
	if (race == RACE_TOGETHER || race == RACE_WITHIN)
		return FACT;
	return lab->against ? NO : YES;
}

static enum answer head_after(struct lab *lab)
{
	return race_run(lab, RACE_AFTER);
}

static enum answer head_together(struct lab *lab)
{
	return race_run(lab, RACE_TOGETHER);
}

static enum answer head_within(struct lab *lab)
{
	return race_run(lab, RACE_WITHIN);
}

static enum answer words_whole(struct lab *lab)
{
	return race_run(lab, RACE_WORDS);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/*
 * Is a READ answered by `wanted`, and one that was posted behind it flushed? Each try has a new
 * connection.
 */
static enum answer fails_with(struct lab *lab, uint8_t wanted, uint32_t wrong_key, uint32_t offset)
{
	uint64_t sum = 0;
	int syndrome = 0, behind = 0;
	struct dv_completion completion;

	for (lab->tries = 0; lab->tries < 8; lab->tries++) {
		uint64_t begun;

		if (pair_open(lab) < 0)
			goto unknown;
		mark(lab->to, LINE, 0xabababab);
		ask(lab, offset, LINE, wrong_key, DV_CE_ALWAYS);
		ask(lab, 0, LINE, 0, DV_CE_ALWAYS);
		begun = clock_monotonic_ns();
		dv_ring(lab->sq[0]);
		syndrome = take(lab, &completion);
		sum += clock_monotonic_ns() - begun;
		behind = syndrome == NONE ? NONE : take(lab, &completion);
		if (syndrome != wanted || behind != DV_SYNDROME_FLUSHED ||
			word_at(lab->to, 0) != 0xabababab) {
			lab->against++;
			break;
		}
	}
	tell(lab,
		"syndrome 0x%02x (%s) after %lu us, the READ behind it 0x%02x; expected: 0x%02x, 0x05",
		syndrome & 0xff,
		syndrome == NONE ? "no completion" : dv_syndrome((uint8_t)syndrome),
		sum / (lab->tries + (lab->against != 0)) / 1000, behind & 0xff, wanted);
	if (pair_open(lab) == 0)
		return lab->against ? NO : YES;
unknown:
	tell(lab, "no new connection: %.200s", dv_error());
	return UNKNOWN;
}

static enum answer wrong_key(struct lab *lab)
{
	return fails_with(lab, DV_SYNDROME_REMOTE_ACCESS, 0x100, 0);
}

static enum answer beyond_region(struct lab *lab)
{
	return fails_with(lab, DV_SYNDROME_REMOTE_ACCESS, 0, LAB_BYTES - LINE / 2);
}

/* A peer whose queue pair is gone: when is that an error? */
static enum answer peer_gone(struct lab *lab)
{
	/* and 4 s, which a call still has in its 10 s; a software NIC waits 1 s */
	uint64_t bound = DV_GIVE_UP_ACKS * dv_qp_ack_ns(lab->qp[0]) + 4000000000, begun, took;
	int syndrome;

	lab->tries = 1;
	if (dv_qp_kill(lab->qp[1]) < 0) {
		tell(lab, "the peer's queue pair cannot be destroyed: %.200s", dv_error());
		return UNKNOWN;
	}
	begun = clock_monotonic_ns();
	syndrome = one(lab, 0, LINE);
	took = clock_monotonic_ns() - begun;
	snprintf(lab->figures, sizeof(lab->figures), "\"gone_ms\": %lu", took / 1000000);
	tell(lab, "syndrome 0x%02x after %lu ms; expected: 0x15, at most %lu ms", syndrome & 0xff,
		took / 1000000, bound / 1000000);
	lab->against = syndrome != DV_SYNDROME_RETRY_EXCEEDED || took > bound;
	if (pair_open(lab) < 0)
		return UNKNOWN;
	return lab->against ? NO : YES;
}

/* After the last completion of a queue pair in error the NIC writes to no buffer. */
static enum answer drained(struct lab *lab)
{
	enum { READS = 16, BYTES = 65536 };
	struct dv_completion completion;
	uint32_t seen[READS], ended;

	for (; lab->tries < 16; lab->tries++) {
		if (pair_open(lab) < 0)
			return UNKNOWN;
		mark(lab->from, LAB_BYTES, (uint32_t)lab->tries + 1);
		memset(lab->to, 0, LAB_BYTES);
		for (unsigned i = 0; i < READS; i++)
			ask(lab, i * BYTES, BYTES, 0, DV_CE_ALWAYS);
		dv_ring(lab->sq[0]);
		(void)dv_qp_error(lab->qp[0]);
		for (ended = 0; ended < READS && take(lab, &completion) != NONE;)
			ended++;
		for (unsigned i = 0; i < READS; i++) /* the last word of each, at once */
			seen[i] = word_at(lab->to, (i + 1) * BYTES - 4);
		usleep(2000);
		for (unsigned i = 0; i < READS; i++)
			if (ended < READS || word_at(lab->to, (i + 1) * BYTES - 4) != seen[i]) {
				lab->against++;
				break;
			}
	}
	tell(lab, "%lu of %lu queue pairs in error missed completions or wrote afterwards",
		lab->against, lab->tries);
	if (pair_open(lab) < 0)
		return UNKNOWN;
	return lab->against ? NO : YES;
}

/* ---- forms and limits ------------------------------------------------------------------------ */

static enum answer sizes_both_ways(struct lab *lab)
{
	static const uint32_t sizes[] = {64, 512, 1024, 2048, 4096, 8192, 131072, 1048576};
	uint32_t longest[2] = {0, 0};

	for (unsigned a = 0; a < 2; a++) {
		for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++, lab->tries++) {
			lab->asker = a;
			mark(lab->from, sizes[i], sizes[i] + a);
			if (one(lab, 0, sizes[i]) ||
				word_at(lab->to, sizes[i] - 4) != sizes[i] + a) {
				lab->against++;
				if (pair_open(lab) < 0)
					return UNKNOWN;
				break;
			}
			longest[a] = sizes[i];
		}
	}
	lab->asker = 0;
	tell(lab, "READs of up to %u bytes arrive, %u the other way", longest[0], longest[1]);
	return lab->against ? NO : YES;
}

static enum answer many_segments(struct lab *lab)
{
	struct dv_sge sge[DV_SGES_MAX];
	int syndrome;

	mark(lab->from, DV_SGES_MAX * LINE, 77);
	memset(lab->to, 0, LAB_BYTES);
	for (unsigned i = 0; i < DV_SGES_MAX; i++)
		sge[i] = (struct dv_sge){
			(uint64_t)(uintptr_t)lab->to + 2 * i * LINE, LINE, lab->sink[0].lkey};
	for (; lab->tries < 2 * LAB_DEPTH; lab->tries++) { /* some wrap at the end of the queue */
		dv_post(lab->sq[0], DV_READ, (uint64_t)(uintptr_t)lab->from, lab->source[1].rkey,
			sge, DV_SGES_MAX, DV_CE_ALWAYS);
		syndrome = finish(lab);
		if (syndrome)
			return broken(lab, syndrome);
		for (unsigned i = 0; i < DV_SGES_MAX; i++)
			lab->against += word_at(lab->to, 2 * i * LINE + LINE - 4) != 77;
	}
	tell(lab, "%lu READs into %u segments each, %lu wrong", lab->tries, DV_SGES_MAX,
		lab->against);
	return lab->against ? NO : YES;
}

/* A full queue with one CQE, over and over: indices and owner bits wrap. */
static enum answer one_completion(struct lab *lab)
{
	struct dv_completion completion = {.qpn = 0};
	struct dv_sq *sq = lab->sq[0];

	for (; lab->tries < 4096; lab->tries++) {
		unsigned n = 1 + (unsigned)lab->tries % sq->wqe_cnt;

		for (unsigned i = 0; i < n; i++)
			ask(lab, i * LINE, LINE, 0, DV_CE_ERROR_ONLY);
		dv_signal_last(sq);
		dv_ring(sq);
		if (take(lab, &completion))
			return broken(lab, completion.syndrome);
		sq->ci = sq->pi;
		if (completion.qpn != sq->qpn || completion.wqe_counter != (uint16_t)sq->last ||
			dv_cq_has(&lab->cq[0]))
			lab->against++;
	}
	tell(lab, "%lu batches of 1 to %u READs with one CQE each, %lu wrong", lab->tries,
		sq->wqe_cnt, lab->against);
	return lab->against ? NO : YES;
}

static enum answer queue_pairs(struct lab *lab)
{
	struct dv_qp *qp[LAB_QPS];
	struct dv_sq *sq;
	char why[160] = "";

	for (; lab->tries < LAB_QPS; lab->tries++)
		if (dv_qp_create(lab->device[0], &lab->cq[0], LAB_DEPTH, &qp[lab->tries], &sq) <
			0) {
			snprintf(why, sizeof(why), ": %.150s", dv_error());
			break;
		}
	for (uint64_t i = 0; i < lab->tries; i++)
		dv_qp_destroy(qp[i]);
	lab->against = LAB_QPS - lab->tries;
	tell(lab, "%lu of %u more queue pairs on one port%s", lab->tries, LAB_QPS, why);
	return lab->against ? NO : YES;
}

static enum answer limits(struct lab *lab)
{
	struct dv_attributes attributes;
	struct dv_address a, b;
	char gid[41] = "";

	dv_attributes(lab->device[0], &attributes);
	dv_qp_address(lab->qp[0], &a);
	dv_qp_address(lab->qp[1], &b);
	for (unsigned i = 0; i < 8; i++)
		snprintf(gid + 5 * i, 6, "%02x%02x%s", a.gid[2 * i], a.gid[2 * i + 1],
			i < 7 ? ":" : "");
	lab->tries = 1;
	tell(lab,
		"MTU %u and %u, READs at a time %u and %u, CQE of %u bytes, %u WQEBBs, %s, GID %s",
		128u << a.mtu, 128u << b.mtu, a.reads, b.reads, lab->cq[0].cqe_size,
		lab->sq[0]->wqe_cnt,
		lab->sq[0]->bf_size ? "doorbells alternate between two halves of a register"
				    : "no BlueFlame: one doorbell register",
		gid);
	snprintf(lab->figures, sizeof(lab->figures),
		"\"gbps\": %lu, \"mtu\": %u, \"reads\": %u, \"bf_size\": %u",
		attributes.bits_per_second / 1000000000, 128u << (a.mtu < b.mtu ? a.mtu : b.mtu),
		a.reads < b.reads ? a.reads : b.reads, lab->sq[0]->bf_size);
	lab->against = (a.mtu < 5) + (b.mtu < 5) + (a.mtu != b.mtu) + (a.reads < 16) +
		       (b.reads < 16) + (lab->sq[0]->bf_size == 0);
	return lab->against ? NO : YES;
}

/* ---- figures --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* READs a second of one queue pair, 32 in a batch. 0: one failed. */
static double rate(struct lab *lab, uint32_t bytes)
{
	struct dv_completion completion;
	uint64_t begun = clock_monotonic_ns(), end = begun + 300000000, n = 0;

	for (; clock_monotonic_ns() < end; n += 32) {
		for (unsigned i = 0; i < 32; i++)
			ask(lab, i % (LAB_BYTES / bytes) * bytes, bytes, 0, DV_CE_ERROR_ONLY);
		dv_signal_last(lab->sq[0]);
		dv_ring(lab->sq[0]);
		if (take(lab, &completion))
			return 0;
		lab->sq[0]->ci = lab->sq[0]->pi;
	}
	return (double)n * 1e9 / (double)(clock_monotonic_ns() - begun);
}

/* What soft.model needs to be that port. */
static enum answer figures(struct lab *lab)
{
	uint64_t *ns = calloc(SAMPLES_MAX, sizeof(*ns)), doorbell = 0, begun = clock_monotonic_ns();
	double small, large;
	unsigned n = 0;

	if (!ns)
		return UNKNOWN;
	for (; n < SAMPLES_MAX && clock_monotonic_ns() - begun < 1000000000; n++) {
		uint64_t from = clock_monotonic_ns(), rung;
		struct dv_completion completion;

		ask(lab, 0, LINE, 0, DV_CE_ALWAYS);
		dv_ring(lab->sq[0]);
		rung = clock_monotonic_ns();
		if (take(lab, &completion))
			break;
		lab->sq[0]->ci = lab->sq[0]->pi;
		ns[n] = clock_monotonic_ns() - from;
		doorbell += rung - from;
	}
	small = rate(lab, LINE);
	large = rate(lab, 131072) * 131072 / 1e9;
	lab->tries = n;
	if (!n || small <= 0 || large <= 0) {
		free(ns);
		tell(lab, "READs of %u bytes fail", n && small > 0 ? 131072 : LINE);
		return UNKNOWN;
	}
	qsort(ns, n, sizeof(*ns), by_size);
	tell(lab,
		"round trip p50 %lu ns, p99 %lu ns; one queue pair %.2f M READs/s, 128 KiB %.2f GB/s; a post with its doorbell %lu ns",
		ns[n / 2], ns[n * 99 / 100], small / 1e6, large, doorbell / n);
	snprintf(lab->figures, sizeof(lab->figures),
		"\"rtt_ns\": %lu, \"qp_rate\": %.0f, \"read_gbytes\": %.3f, \"doorbell_ns\": %lu",
		ns[n / 2], small, large, doorbell / n);
	free(ns);
	return FACT;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const struct experiment {
	enum answer (*run)(struct lab *lab);
	const char *name;
	bool grave; /* where it does not hold, pages may be wrong */
	const char *promise, *remedy;
} experiments[] = {
	{limits, "forms and limits", false, "one queue pair fills its share of the port",
		"set the same MTU of 4096 (RoCE: netdev MTU 4200 or more) on hosts and switches; with fewer READs at a time raise rail.qps_per_peer; nothing is to be done without BlueFlame"},
	{sizes_both_ways, "long READs both ways", false, "a page arrives, whatever its length",
		"an MTU on the path is smaller one way: set the same one on all ports and switches"},
	{lands, "payload before its completion", true, "a hit has all bytes of its page",
		"set rail.validate=crc on this host, and send us the report"},
	{fresh, "a READ sees the last store", true,
		"an evicted page is a miss: its generation was raised before",
		"set rail.validate=crc on all hosts, and send us the report; until then exists may say hit for a page that is gone"},
	{head_after, "head READ after the payload", true,
		"a READ that overlaps the reuse of its slot is never a hit (rail.validate = tail)",
		"set rail.validate=crc on this host, and send us the report"},
	{words_whole, "8-byte words are whole", true, "a page head is old or new",
		"set rail.validate=crc on this host, and send us the report"},
	{head_together, "payload and head in one doorbell", false, "none: the lease needs no order",
		""},
	{head_within, "payload and head in one READ", false, "none: no code relies on an order",
		""},
	{one_completion, "one CQE for a batch", true, "a READ is counted once, and not too early",
		"send us the report"},
	{many_segments, "READs into 30 segments", true, "a page in many segments is whole",
		"send us the report"},
	{wrong_key, "a wrong key", false, "a stale place is an error, never bytes",
		"send us the report: the log names another cause then, pages stay right"},
	{beyond_region, "beyond a region", false, "a stale place is an error, never bytes",
		"send us the report: the log names another cause then, pages stay right"},
	{peer_gone, "a peer that is gone", false, "a call returns by its deadline",
		"lower rail.ack_timeout"},
	{drained, "a queue pair in error is silent", true,
		"no call returns before the NIC is done with its buffers", "send us the report"},
	{queue_pairs, "queue pairs of a port", false, "each peer has its queue pairs",
		"lower rail.qps_per_peer; a VF has the limit of its firmware"},
	{figures, "round trip, rates, doorbell", false, "none: the figures of soft.model", ""},
};

static void experiment_run(struct lab *lab, const struct experiment *e, FILE *out)
{
	static const char *const names[] = {"no", "yes", "unknown", "yes"};
	uint64_t begun = clock_monotonic_ns();
	enum answer answer;

	lab->tries = lab->against = 0;
	lab->text[0] = lab->figures[0] = '\0';
	answer = e->run(lab);
	for (char *at = lab->text; *at; at++)
		if (*at == '"' || *at == '\\' || *at < ' ')
			*at = '\'';
	fprintf(out,
		"{\"name\": \"%s\", \"answer\": \"%s\", \"grave\": %s, \"tries\": %lu, \"against\": %lu, \"seconds\": %.2f, \"text\": \"%s\", \"promise\": \"%s\", \"do\": \"%s\", \"figures\": {%s}}\n",
		e->name, names[answer], e->grave ? "true" : "false", lab->tries, lab->against,
		(double)(clock_monotonic_ns() - begun) / 1e9, lab->text, e->promise,
		answer == NO ? e->remedy : "", lab->figures);
	fflush(out);
}

static int lab_open(struct lab *lab)
{
	int rc = 0;

	lab->memfd = memfd_create("peercache-experiment", MFD_CLOEXEC);
	if (lab->memfd < 0 || ftruncate(lab->memfd, 2 * LAB_BYTES) < 0)
		return -errno;
	lab->from = mmap(NULL, 2 * LAB_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, lab->memfd, 0);
	if (lab->from == MAP_FAILED)
		return -errno;
	lab->to = lab->from + LAB_BYTES;
	for (unsigned i = 0; i < 2 && rc == 0; i++) {
		const struct dv_memory source = {
			lab->from, LAB_BYTES, DV_REMOTE_READ, lab->memfd, 0};
		const struct dv_memory sink = {lab->to, LAB_BYTES,
			DV_LOCAL_WRITE | DV_RELAXED_ORDERING, lab->memfd, LAB_BYTES};

		rc = dv_open(&lab->options->end[i], &lab->device[i]);
		if (rc == 0)
			rc = dv_mr_register(lab->device[i], &source, &lab->source[i]);
		if (rc == 0)
			rc = dv_mr_register(lab->device[i], &sink, &lab->sink[i]);
	}
	lab->steps = rc == 0 && dv_needs_step(lab->device[0]);
	return rc;
}

static void lab_close(struct lab *lab)
{
	pair_close(lab);
	for (unsigned i = 0; i < 2; i++) {
		if (lab->source[i].base)
			(void)dv_mr_deregister(lab->device[i], &lab->source[i]);
		if (lab->sink[i].base)
			(void)dv_mr_deregister(lab->device[i], &lab->sink[i]);
		if (lab->device[i])
			dv_close(lab->device[i]);
	}
	if (lab->from && lab->from != MAP_FAILED)
		munmap(lab->from, 2 * LAB_BYTES);
	if (lab->memfd >= 0)
		close(lab->memfd);
}

int dv_experiment_run(const struct dv_experiment *options, FILE *out)
{
	struct lab lab = {.options = options};
	int rc = lab_open(&lab);

	for (unsigned i = 0; rc == 0 && i < sizeof(experiments) / sizeof(experiments[0]); i++) {
		rc = pair_open(&lab);
		if (rc == 0)
			experiment_run(&lab, &experiments[i], out);
	}
	lab_close(&lab);
	return rc;
}
