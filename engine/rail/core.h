/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct rail holds everything one rail owns; the rest of this header declares the functions that
 * the files of this folder call of each other, by file. rail_open() maps the rail at once and
 * allocates its inbox rings; nothing is allocated after that. Only the poll core uses it, except
 * for the control plane's ends of the inbox and the two members that any thread may read (in_flight
 * and counter).
 */
#ifndef RAIL_CORE_H
#define RAIL_CORE_H

#include "config/hooks.h"
#include "config/likely.h"
#include "dv/hot.h"
#include "engine/abi/probe.h"
#include "engine/rail/conn.h"
#include "engine/rail/rail.h"
#include "numa/clock.h"

#define container_of(at, type, member) ((type *)(void *)((char *)(at)-offsetof(type, member)))

#define RAIL_POST_BURST 512u   /* WQEs that one step of a rail posts, at most */
#define RAIL_COMMAND_BURST 64u /* inbox commands that one step of a rail executes, at most */
#define RAIL_CLOCK_STEPS 64u   /* steps with work between two checks of the deadlines */
#define RAIL_SAMPLE_STEPS 15u  /* busy steps with doorbells between two samples of READ latency */
/* steps without work that are collected before counter[] is updated */
#define RAIL_IDLE_STEPS 1024u
/*
 * Number of steps after RAIL_STOP with no run in flight, in which a rail takes every op that a
 * client ring held when the command arrived. A step takes up to RAIL_TAKE_BURST pages or buckets of
 * a channel, of which a line names at most RUN_LINE_BUCKETS.
 */
#define RAIL_STOP_STEPS (OP_RING_SLOTS * RUN_LINE_BUCKETS / RAIL_TAKE_BURST + 1)
static_assert(RUN_HEADER_BUCKETS <= RUN_LINE_BUCKETS, "no line names more than the further ones");
/* Parked pages and buckets, at most, so that unreachable peers cannot use up all runs. */
#define RAIL_PARKED_MAX (RAIL_RUNS / 2)
static_assert(RUN_PAGES_MAX <= RAIL_PARKED_MAX, "the longest run can be parked");
/*
 * READs of heads that several pages share land in blocks, one for each WQE in flight.
 */
#define RAIL_LANDINGS CQ_DEPTH
static_assert(RAIL_LANDINGS <= 1u << 16, "numbers of blocks have 16 bits");
/* Each run has a place for the heads of its pages, in their order, behind these blocks. */
#define RAIL_RUN_HEADS_AT (RAIL_LANDINGS * RUN_HEADS_SPAN)
/*
 * Capacity of rail->late, the queue for events that found the event ring full. It cannot overflow:
 * the control plane can have unread at most 5 events of a connection, 1 RAIL_CONN_WANTED of a
 * member, 2 events of a channel, 1 of a region, RAIL_QUIET and RAIL_STOPPED.
 */
#define RAIL_EVENTS_LATE 32768u
static_assert(RAIL_EVENTS_LATE > 5 * RAIL_CONNECTIONS_MAX + NODES_MAX + 2 * RAIL_CHANNELS_MAX +
					 REGIONS_MAX + 1,
	"no event is ever lost");
static_assert((RAIL_EVENTS_LATE & (RAIL_EVENTS_LATE - 1)) == 0, "indices are masked");
static_assert(CQ_DEPTH >= RAIL_POST_BURST, "a step's WQEs have room for their CQEs");

/*
 * A destination region: memory of this host that READs may write. Registered by the control plane
 * with RAIL_REGION_ADD.
 */
struct region_slot {
	uint64_t base;   /* start of the region: address in the engine's process */
	uint64_t length; /* length of the region, bytes */
	uint32_t lkey;   /* lkey of the region's MR; unused if it has extents */
	/* session whose ops may name the region; 0 matches no session: region absent or being
	 * dropped */
	uint32_t session;
	/* number of live runs in the region; a list of segments counts once for each stretch */
	uint32_t users;
	/* log2 of an extent's bytes, with the extents' lkeys in rail->extent_lkey; 0: one MR */
	uint8_t extent_shift;
	bool present;
	bool dropping; /* RAIL_REGION_DROP was received; the region is returned when `users` is 0 */
};
static_assert(sizeof(struct region_slot) == 32, "two to a cache line");

struct channel_slot {
	struct rail_channel *channel; /* the open channel with this id; NULL: none */
	uint32_t fresh; /* number of completions written to the done ring and not yet published */
	uint32_t turn;  /* index of this channel in rail->turn */
	/* when the channel's last lot ends, in the time of rail->lots_now: see run_queue() */
	uint64_t lots_end;
};

struct rail {
	/* owner: poll core; touched every step */
	alignas(64) struct dv_cq cq;
	/* owner: poll core; touched every step. unrung: list of the QPs with WQEs posted after
	 * their last doorbell, linked by rung_next */
	alignas(64) struct conn_qp *unrung;
	struct list waiting; /* list of the connections that have READs to post */
	/* WQEs posted and not retired, of all QPs of the rail; at most cq.cqe_cnt, so that the
	 * CQ cannot overflow */
	uint32_t wqes;
	/* bytes of READs posted and not retired; those of stalled connections are not counted */
	uint32_t posted_bytes;
	/* bytes of runs that have a connection; those of stalled connections are not counted */
	uint64_t taken_bytes;
	uint32_t channels; /* number of open channels: valid entries of turn[] */
	/* index in turn[] of the channel after which rail_take() starts; rail_take() advances it */
	uint32_t first;
	bool blocked;  /* true: an op ring still holds ops that the last step had no room to take */
	bool stopping; /* true: RAIL_STOP was received */
	bool stopped;  /* true: RAIL_STOPPED was sent */
	/* true: events were sent since rail_wake() last checked whether to kick the control
	 * plane */
	bool events_sent;
	bool news; /* true: completions or events were published since the last rail_wake() */
	uint16_t fresh_count; /* number of entries of fresh[] */
	/* number of steps that did work with runs in flight; compared with RAIL_CLOCK_STEPS */
	uint32_t steps;
	/* owner: poll core; touched every step that moves something */
	alignas(64) uint64_t now_ns; /* CLOCK_MONOTONIC in this step, ns; 0: not read yet */
	uint64_t nearest_ns;         /* lower bound of the deadlines of all live runs */
	/* number of steps without work that are not yet added to counter[] */
	uint64_t steps_idle;
	uint32_t conns_free; /* number of free struct conn, which conn_stack lists */
	/* number of pages and buckets of runs without a connection or on a stalled one */
	uint32_t parked;
	uint32_t runs_free;     /* number of free runs, which run_stack lists */
	uint32_t landings_free; /* number of free landing blocks, which landing_stack lists */
	uint64_t lots_now; /* tag of the last lot posted: charged bytes, a time for run_queue() */
	/* free-running indices of the first event in late[] and behind the last one */
	uint32_t late_head, late_tail;
	/* steps since RAIL_STOP with no run in flight; stops counting at RAIL_STOP_STEPS */
	uint32_t stop_steps;
	/* CLOCK_MONOTONIC_RAW for leases, ns; 0: not read yet. t0_ns: in this step. t1_ns: after
	 * the CQEs of this burst were read from the CQ */
	uint64_t t0_ns, t1_ns;
	uint64_t watch_ns;   /* CLOCK_MONOTONIC at which conns_watch() is due, ns */
	uint64_t watched_ns; /* CLOCK_MONOTONIC of the last conns_watch(), ns */
	/* READ latency is sampled, one WQE at a time: see rail_sample_start() */
	struct conn_qp *timed; /* queue pair of the timed WQE; NULL: none is timed */
	uint32_t timed_end;    /* the timed WQE has retired when sq->ci reaches this index */
	uint64_t timed_ns;     /* CLOCK_MONOTONIC at which its doorbell was rung */
	uint32_t sample_wait;  /* number of busy steps with doorbells before the next sample */
	/* owner: poll core; any thread reads it. Live runs: taken, not answered */
	alignas(64) uint32_t in_flight;
	uint32_t stalls; /* number of the last stall of a connection: rail_conn.stalled; wraps */
	/* owner: poll core; any thread reads them */
	alignas(64) uint64_t counter[COUNTER_COUNT];
	uint64_t latency[LATENCY_BUCKETS]; /* histogram of the sampled READs */
	uint64_t latency_ns_sum;           /* sum of their latencies */
	/* owner: poll core (command_in, event_out) and control plane (command_out, event_in) */
	alignas(64) struct inbox inbox;
	/* read-only once the core runs, until the NIC is lost */
	alignas(64) struct rail_options options;
	uint32_t heads_lkey; /* lkey of the MR of head[]; another one after RAIL_FOUND */
	/* true: the rail's NIC is a software NIC that the poll core must step */
	bool device_steps;
	bool started; /* true: a poll core was started with this rail */
	/* the rail's CQ as created; `cq` is replaced by a dummy from RAIL_LOST to RAIL_FOUND, and
	 * rail_nic_open() makes this one anew between them */
	struct dv_cq cq_made;
	uint32_t heads_lkey_made; /* the same of heads_lkey */
	void *inbox_memory;       /* memory of both rings of the inbox */
	void *heads_handle;       /* the struct dv_mr of head[] */

	/* owner: poll core; everything below, too, except head[]. live[i]: run[i] was taken and is
	 * not answered yet */
	alignas(64) bool live[RAIL_RUNS];
	struct list conns; /* list of all connections of the rail, oldest first */
	/* true: from RAIL_LOST to RAIL_FOUND, and no new connection is accepted */
	bool lost;
	/* bit per channel that got completions since the last rail_wake() */
	uint64_t wake[RAIL_CHANNELS_MAX / 64];
	/* ids of the channels with completions that are not published yet */
	uint16_t fresh[RAIL_CHANNELS_MAX];
	/* ids of the open channels, in the order in which rail_take() serves them */
	uint16_t turn[RAIL_CHANNELS_MAX];
	/* the channels that the rail has, by channel id */
	struct channel_slot channel[RAIL_CHANNELS_MAX];
	/* what the rail knows of each peer, by map_member.peer: see peer_slot_of() */
	struct peer_slot peer[NODES_MAX];
	/* destination regions of clients, by region number */
	struct region_slot region[REGIONS_MAX];
	/* lkeys of a region's extents, by region number; memory of the control plane, valid
	 * until RAIL_REGION_RETURNED */
	const uint32_t *extent_lkey[REGIONS_MAX];
	struct rail_run *run_stack[RAIL_RUNS];     /* the free runs */
	uint16_t landing_stack[RAIL_LANDINGS];     /* numbers of the free landing blocks */
	uint16_t conn_stack[RAIL_CONNECTIONS_MAX]; /* numbers of the free entries of conn[] */
	/* Hash table from QP number to the rail's QP: open addressing. */
	struct {
		uint32_t qpn;
		uint16_t used;
		/* number of the QP: index in conn[] * QPS_PER_PEER_MAX + index in conn.qp[] */
		uint16_t qp;
	} table[CONN_TABLE_SLOTS];
	struct rail_event late[RAIL_EVENTS_LATE];
	struct rail_run run[RAIL_RUNS];
	/* by run: the private copy of its list of segments. Only lists touch this memory */
	struct op_segments segments[RAIL_RUNS][SEGMENTS_MAX / OP_LINE_SEGMENTS];
	struct conn conn[RAIL_CONNECTIONS_MAX];
	/* owner: the NIC, from the post of a READ of page heads to its CQE; otherwise the poll
	 * core. Heads arrive in a landing block, or in the place of their run behind the blocks. */
	alignas(4096) struct page_head head[RAIL_RUN_HEADS_AT + RAIL_RUNS * RUN_PAGES_MAX];
};
static_assert(offsetof(struct rail, unrung) == 64, "the CQ has its own cache line");
static_assert(offsetof(struct rail, now_ns) == 128, "what every step touches is one cache line");
static_assert(
	offsetof(struct rail, in_flight) % 64 == 0, "other threads' reads disturb one cache line");
static_assert(offsetof(struct rail, head) % 4096 == 0, "heads never straddle a cache line");

/* The slot of a peer, with its lists: the slots are zeroed memory until a peer is used. */
static inline struct peer_slot *peer_slot_of(struct rail *rail, uint16_t peer)
{
	struct peer_slot *slot = &rail->peer[peer];

	if (unlikely(!slot->parked.next))
		list_init(&slot->parked);
	return slot;
}

static inline uint64_t rail_now(struct rail *rail)
{
	if (!rail->now_ns)
		rail->now_ns = clock_now_ns();
	return rail->now_ns;
}

/* ---- leases: see abi/page.h ---- */

/* T0 of READs that are posted after this call. A time from earlier in the step is safe, too. */
static inline uint64_t rail_t0(struct rail *rail)
{
	if (!rail->t0_ns)
		rail->t0_ns = rail->t1_ns ? rail->t1_ns : clock_raw_ns();
	return rail->t0_ns;
}

/*
 * T1 of READs whose CQEs are in the burst that rail_reap() is working on, or in an earlier one.
 * rail_reap() clears it after it has read the CQEs of a burst, so it is never older than they are.
 */
static inline uint64_t rail_t1(struct rail *rail)
{
	if (!rail->t1_ns) {
		shm_fence_lease();
		rail->t1_ns = clock_raw_ns();
	}
	return rail->t1_ns;
}

/* ---- live runs: taken and not answered yet ---- */

/*
 * The first live run whose number is at least `number`; NULL: none. A loop over live runs may end
 * runs: ended ones are skipped.
 */
static inline struct rail_run *run_live_from(struct rail *rail, unsigned number)
{
	while (number < RAIL_RUNS && !rail->live[number])
		number++;
	return number < RAIL_RUNS ? &rail->run[number] : NULL;
}

/*
 * Makes a taken run live until it ends, with a deadline at which rail_expire() looks at it,
 * CLOCK_MONOTONIC in ns. A live run gets another deadline.
 */
static inline void run_set_live(struct rail *rail, struct rail_run *run, uint64_t deadline_ns)
{
	run->deadline_ns = deadline_ns;
	if (deadline_ns < rail->nearest_ns)
		rail->nearest_ns = deadline_ns;
	rail->live[run->number] = true;
}

/* The heads at which a READ with this landing block arrives: RUN_HEADS_SPAN of them. */
static inline struct page_head *run_landing(struct rail *rail, uint16_t block)
{
	return &rail->head[block * RUN_HEADS_SPAN];
}

/* The region of the peer in which `remote` is, see run_remote(); makes that the offset in it. */
static inline const struct rail_remote *run_region(
	const struct conn *conn, const struct rail_run *run, uint64_t *remote)
{
	uint64_t rail = *remote >> RUN_RAIL_SHIFT;

	*remote -= rail << RUN_RAIL_SHIFT;
	return &conn->handle->region[run->header.region + rail];
}

/* The place for the heads of a run's pages, by page. */
static inline struct page_head *run_own_heads(struct rail *rail, uint16_t number)
{
	return &rail->head[RAIL_RUN_HEADS_AT + number * RUN_PAGES_MAX];
}

/* The list of segments of a run. */
static inline struct op_segment *run_segments(struct rail *rail, uint16_t number)
{
	return rail->segments[number][0].segment;
}

static inline bool conn_full(const struct rail *rail, const struct conn *conn)
{
	return 2 * conn->runs_live > rail->runs_free;
}

static inline void rail_count(struct rail *rail, enum counter which, uint64_t n)
{
	shm_count(&rail->counter[which], n);
}

/* ---- step.c: one step of the rail ---- */
/*
 * Prefetches the two cache lines that the next step of this rail reads first: the next CQE, and the
 * next op ring entry of the channel turn[0], which a client's core may just have written. The poll
 * core calls it before it steps the preceding rail, so the misses overlap with that step.
 */
static inline void rail_prefetch(const struct rail *rail)
{
	const struct dv_cq *cq = &rail->cq;

	__builtin_prefetch(cq->buf + ((size_t)(cq->ci & (cq->cqe_cnt - 1)) + 1) * cq->cqe_size - 1);
	if (rail->channels) {
		const struct ring_consumer *ops = &rail->channel[rail->turn[0]].channel->ops;
		const unsigned char *slot = ring_slot_old(ops, ops->tail_seen - ops->head);

		__builtin_prefetch(slot);
	}
}
/*
 * Sends an event to the control plane, or keeps it in rail->late when the event ring is full; a
 * later step sends it.
 */
void rail_event_send(struct rail *rail, const struct rail_event *event);
/* Consumes every CQE that the CQ holds at present. */
void rail_reap_all(struct rail *rail);
/*
 * Retires every posted WQE of the connection as if it had been flushed. Only when the NIC can no
 * longer touch them.
 */
void conn_retire_posted(struct rail *rail, struct conn *conn);

/* ---- commands.c ---- */
/* Executes commands that the control plane sent through the inbox. Returns their number. */
unsigned rail_execute_commands(struct rail *rail);
/*
 * Marks a channel broken and sends RAIL_CHANNEL_BROKEN, once. The rail neither takes ops from the
 * channel nor writes completions to it from then on.
 */
void channel_break(struct rail *rail, struct rail_channel *channel);
/* Returns a channel that is being stopped to the control plane if it has no run in flight. */
void channel_return_if_idle(struct rail *rail, struct rail_channel *channel);
/* Sends RAIL_REGION_RETURNED for a region that is being dropped if no run uses it. */
void region_return_if_unused(struct rail *rail, uint32_t id);
/* After RAIL_STOP: sends RAIL_STOPPED once no run, connection, command or event is left. */
void rail_finish(struct rail *rail);

/* Ends a run's use of a region. */
static inline void region_release(struct rail *rail, uint32_t id)
{
	if (--rail->region[id].users == 0 && unlikely(rail->region[id].dropping))
		region_return_if_unused(rail, id);
}

/* ring_slot_new() of a done ring, whose geometry is constant. */
static inline void *channel_done(struct ring_producer *done, uint32_t i)
{
	size_t at = ring_at(DONE_RING_SLOTS, sizeof(struct run_done), done->tail + i);

	return i ? done->slots + at : (void *)done->first;
}

/*
 * Writes a completion with its turn to the channel's done ring; the step publishes it at its end.
 * The ring has room, because an op is taken only if its completion fits.
 */
static inline void channel_answer(
	struct rail *rail, struct channel_slot *slot, struct run_done *done)
{
	struct rail_channel *channel = slot->channel;

	if (likely(!channel->stopping && !channel->broken)) {
		done->turn = (uint16_t)ring_turn(DONE_RING_SLOTS, channel->done.tail + slot->fresh);
		memcpy(channel_done(&channel->done, slot->fresh), done, sizeof(*done));
		if (!slot->fresh++)
			rail->fresh[rail->fresh_count++] = (uint16_t)channel->id;
	}
	channel->in_flight--;
}

/* ---- intake.c ---- */
/* Takes ops from all clients' op rings. Returns their number. */
unsigned rail_take(struct rail *rail);
/*
 * Routes a taken run: to the connection of its peer, to the list of runs that wait for one, or back
 * to the client with OP_PEER_DOWN or OP_INVALID.
 */
void run_route(struct rail *rail, struct rail_run *run);
/* Counts a run of this connection; run_queue() or run_queue_heads() follows. */
void run_enter_conn(struct rail *rail, struct conn *conn, struct rail_run *run);

/* ---- run.c ---- */
struct rail_run *run_new(struct rail *rail);
void run_free(struct rail *rail, struct rail_run *run);
/*
 * Nothing more of the run is posted. Pages that are not decided get `status`, or an earlier error.
 */
void run_quit(struct rail_run *run, enum op_status status);
/* run_quit(); the run ends at once if none of its WQEs is at the NIC. */
void run_fail(struct rail *rail, struct rail_run *run, enum op_status status);
/*
 * Answers the run and frees it; pages in neither mask get `status`. None of its WQEs may be at the
 * NIC.
 */
void run_end(struct rail *rail, struct rail_run *run, enum op_status status);

/* Queues a run that has page heads to READ at its connection, and the connection at the rail. */
static inline void run_queue_heads(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	if (!list_linked(&run->heads))
		list_append(&conn->run_heads, &run->heads);
	if (!list_linked(&conn->waiting))
		list_append(&rail->waiting, &conn->waiting);
}

/* ---- lone_page.c ---- */
/* Counts the regions that the list of segments names: `change` is 1 or -1. */
void lone_count_regions(struct rail *rail, const struct rail_run *run, int change);
/*
 * Post up to `burst` READs of the first runs of the connection, as long as these are lone pages:
 * slices, lot by lot, and with a lease the head behind them; heads whose payload has arrived.
 * Return how many. *ret_all: false: there is no room for more now.
 */
unsigned lone_pages_post(struct rail *rail, struct conn *conn, unsigned burst, bool *ret_all);
unsigned lone_pages_post_heads(struct rail *rail, struct conn *conn, unsigned burst);

/* ---- run_post.c ---- */
/*
 * Post up to `burst` WQEs of the connection's runs: payload, lot by lot; page heads whose payload
 * has arrived. Return how many.
 */
unsigned runs_post(struct rail *rail, struct conn *conn, unsigned burst);
unsigned runs_post_heads(struct rail *rail, struct conn *conn, unsigned burst);

#endif
