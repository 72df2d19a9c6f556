/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeds, and engines that are refused: part of member.h, for member*.c, seeds_file.c and etcd.c.
 * Control plane's thread only.
 */
#ifndef CONTROL_MEMBER_SEED_H
#define CONTROL_MEMBER_SEED_H

#include "config/limits.h"
#include "config/settings.h"
#include "engine/control/members/member_report.h"
#include "engine/control/members/members.h"
#include "engine/control/net/address.h"
#include "engine/control/net/rpc.h"

/*
 * time after which a seed that led to this engine itself is dialled again: its DNS name may change
 */
#define MEMBER_SELF_RETRY_NS (30ull * 1000000000)
/*
 * time between two exchanges of seeds that do not answer, once this engine has found another one;
 * until then it is a heartbeat
 */
#define MEMBER_ROTATE_NS (10ull * 1000000000)
#define SEED_LINE_NS (3600ull * 1000000000)   /* the longest time between two lines about one */
#define REFUSALS 64                           /* refused engines that are remembered */
#define REFUSAL_LASTS_NS (30ull * 1000000000) /* a refusal ends so long after the last one */
#define REFUSAL_GAP_NS (600ull * 1000000000)  /* the longest pause between two attempts */

/* Where the address of a seed comes from. Each source has SEEDS_MAX elements of member->seed. */
enum seed_source { SEED_LIST, SEED_FILE, SEED_ETCD, SEED_SOURCES };

/*
 * Something that should answer and does not. Its line in the log comes after SEED_SILENT_MS, then
 * whenever the time has doubled, at least every SEED_LINE_NS.
 */
struct silence {
	uint64_t since_ns; /* 0: it answers */
	uint64_t line_ns;  /* no line before this time; 0: there was none */
};

struct member_seed {
	struct seed_address address; /* host "": the element is free */
	/* the dial of the seed; NULL: the seed's engine is known, so the seed is not dialled */
	struct rpc_dial *dial;
	char name[NAME_BYTES_MAX];
	/* after the seed led to this engine itself: no new dial before this time */
	uint64_t retry_ns;
	bool self;              /* the seed is this engine's own address, so it is never dialled */
	bool refused;           /* its engine and this one refuse each other */
	struct silence silence; /* while it leads to no member */
	char why[SEED_WHY_BYTES]; /* how the last dial ended; "": none has ended yet */
};

/* All addresses of a source, which owns them: see member_seeds_replace(). */
struct seed_list {
	const struct seed_address *address; /* NULL: the source has not been read */
	unsigned count;
	struct silence silence;
	char why[SEED_WHY_BYTES]; /* why the source cannot be read; "": it can */
};

/* An engine that is refused, or that refuses this one. */
struct refusal {
	uint64_t who, why; /* its incarnation, or a hash; a hash of the text. who 0: free */
	uint64_t since_ns, last_ns;
	uint64_t gap_ns; /* between the last two */
	bool theirs;     /* it refuses this engine */
	bool name_taken; /* for its name, which is that of another engine */
	char name[NAME_BYTES_MAX];
	char address[ADDRESS_TEXT_BYTES]; /* as it tells others, with its port */
	char from[NAME_BYTES_MAX];        /* where it is connected to or from */
	char text[REFUSAL_BYTES];
};

/* ---- member_seeds.c -------------------------------------------------------------------------- */

/*
 * Parses cluster.seeds into the elements of SEED_LIST. Returns the number of addresses, or -EINVAL
 * after logging the reason. Uses no network.
 */
int member_seeds(const struct settings *settings, struct members *members);
/* Makes the address a seed in a free element. */
void seed_set(struct member_seed *seed, const struct seed_address *address,
	const struct settings *settings);

/* ---- member_dial.c --------------------------------------------------------------------------- */

/* Dials each seed that does not lead to a live member or a candidate of the table. */
void member_seeds_tick(struct control *control, uint64_t now_ns);
/*
 * Makes `count` addresses the seeds of one source. Seeds that are not among them are no longer
 * dialled; members stay members. SEEDS_MAX of them are dialled at a time, from a random place of
 * the list on; those that do not answer make room for others. The caller keeps `address` as it is
 * until the next call or until the member table is closed. Never call it from a callback of a link
 * or a dial.
 */
void member_seeds_replace(struct control *control, enum seed_source source,
	const struct seed_address *address, unsigned count);

/* ---- member_silent.c ------------------------------------------------------------------------- */

/* The source cannot be read, for this reason; NULL: it can. The text is copied. */
void member_source_read(struct control *control, enum seed_source source, const char *why);
/* A dial of a seed has ended; error: errno, ECONNABORTED if this engine closed the link. */
void seed_failed(const struct rpc_dial *dial, int error);
/* Called by member_seeds_tick(): notes which seeds lead to members, and logs those that do not. */
void seeds_watch(struct control *control, uint64_t now_ns);

/* ---- member_refuse.c ------------------------------------------------------------------------- */

/* Who is refused, and over which link. */
struct refused_engine {
	struct rpc_link *link;
	const Pc__Member *member; /* what it says of itself; NULL: it cannot be understood */
	bool name_taken;          /* its name is that of another engine */
};
/*
 * Tells the other engine the reason, if it has dialled, closes the link, logs the reason once for
 * each engine, and remembers the refusal for health.
 */
__attribute__((format(printf, 3, 4))) void member_refuse(
	struct control *control, const struct refused_engine *who, const char *format, ...);
/* The other engine's Hello is a refusal of this engine, with this text. Closes the link. */
void member_refused(struct control *control, const struct refused_engine *who, const char *text);
/* The engine fits now: it is no longer counted as refused. */
void member_refusal_end(struct control *control, const Pc__Member *member);
/* True while another engine is refused, or refuses this one. */
bool member_refusals_last(const struct control *control, uint64_t now_ns);
/* Sends a Hello that refuses the other engine, and closes the link. */
void member_greet_refused(struct control *control, struct rpc_link *link, const char *text);

#endif
