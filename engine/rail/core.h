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
#include "engine/rail/request.h"
#include "numa/clock.h"

#define container_of(at, type, member) ((type *)(void *)((char *)(at)-offsetof(type, member)))

#define RAIL_POST_BURST 512u   /* WQEs that one step of a rail posts, at most */
#define RAIL_COMMAND_BURST 64u /* inbox commands that one step of a rail executes, at most */
#define RAIL_CLOCK_STEPS 64u   /* steps with work between two checks of the requests' deadlines */
#define RAIL_SAMPLE_STEPS 15u  /* busy steps with doorbells between two samples of READ latency */
/* steps without work that are collected before counter[] is updated */
#define RAIL_IDLE_STEPS 1024u
/*
 * Number of steps after RAIL_STOP, in which a rail takes every op that a client ring held when the
 * command arrived.
 */
#define RAIL_STOP_STEPS (OP_RING_SLOTS / RAIL_TAKE_BURST + 1)
/*
 * Parked requests and pages of parked runs, at most, so that unreachable peers cannot use up all
 * requests.
 */
#define RAIL_PARKED_MAX (RAIL_REQUESTS / 2)
static_assert(RUN_PAGES_MAX <= RAIL_PARKED_MAX, "the longest run can be parked");
/*
 * READs of the heads of runs land in blocks of their own, one for each WQE in flight, behind the
 * heads of the requests.
 */
#define RAIL_LANDINGS CQ_DEPTH
#define RAIL_LANDINGS_AT (RAIL_REQUESTS * RAIL_HEADS_SPAN)
static_assert(RAIL_LANDINGS <= 1u << 16, "numbers of blocks have 16 bits");
/* Each run has a place for the heads of its pages, in their order, behind these blocks. */
#define RAIL_RUN_HEADS_AT (RAIL_LANDINGS_AT + RAIL_LANDINGS * RUN_HEADS_SPAN)
/*
 * Capacity of rail->late, the queue for events that found the event ring full. It cannot overflow:
 * the control plane can have unread at most 5 events of a connection, 1 RAIL_CONN_WANTED of a
 * member, 2 events of a channel, 1 of a region, RAIL_QUIET and RAIL_STOPPED.
 */
#define RAIL_EVENTS_LATE 32768u
static_assert(RAIL_EVENTS_LATE >
		      5 * RAIL_CONNECTIONS_MAX + NODES_MAX + 2 * CHANNELS_MAX + REGIONS_MAX + 1,
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
	/* number of live runs in the region, and of stretches of segments of live requests */
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
	struct list waiting; /* list of the connections that have requests to post */
	/* WQEs posted and not retired, of all QPs of the rail; at most cq.cqe_cnt, so that the
	 * CQ cannot overflow */
	uint32_t wqes;
	/* bytes of READs posted and not retired; those of stalled connections are not counted */
	uint32_t posted_bytes;
	/* bytes of requests that have a connection; those of stalled connections are not counted */
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
	/* number of steps that did work with requests in flight; compared with RAIL_CLOCK_STEPS */
	uint32_t steps;
	/* owner: poll core; touched every step that moves something */
	alignas(64) uint64_t now_ns; /* CLOCK_MONOTONIC in this step, ns; 0: not read yet */
	uint64_t nearest_ns;         /* lower bound of the deadlines of all live requests */
	/* number of steps without work that are not yet added to counter[] */
	uint64_t steps_idle;
	uint32_t requests_free; /* number of free requests, which request_stack lists */
	uint32_t blocks_free;   /* number of free segment blocks, which block_stack lists */
	uint32_t conns_free;    /* number of free struct conn, which conn_stack lists */
	/* number of requests, and of pages of runs, without a connection or on a stalled one */
	uint32_t parked;
	uint32_t runs_free;     /* number of free runs, which run_stack lists */
	uint32_t landings_free; /* number of free landing blocks, which landing_stack lists */
	uint64_t lots_now; /* tag of the last lot posted: charged bytes, a time for run_queue() */
	/* free-running indices of the first event in late[] and behind the last one */
	uint32_t late_head, late_tail;
	/* number of steps since RAIL_STOP; stops counting at RAIL_STOP_STEPS */
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
	/* owner: poll core; any thread reads it. Live requests and runs: taken, not answered */
	alignas(64) uint32_t in_flight;
	uint32_t stalls; /* number of the last stall of a connection: rail_conn.stalled; wraps */
	/* owner: poll core; any thread reads them */
	alignas(64) uint64_t counter[COUNTER_COUNT];
	uint64_t latency[LATENCY_BUCKETS]; /* histogram of the sampled READs */
	uint64_t latency_ns_sum;           /* sum of their latencies */
	/* owner: poll core (command_in, event_out) and control plane (command_out, event_in) */
	alignas(64) struct inbox inbox;
	/* read-only once the core runs */
	alignas(64) struct rail_options options;
	uint32_t heads_lkey; /* lkey of the MR of head[], into which page heads are READ */
	/* true: the rail's NIC is a software NIC that the poll core must step */
	bool device_steps;
	bool started; /* true: a poll core was started with this rail */
	/* the rail's CQ as created; `cq` is replaced by a dummy after RAIL_LOST */
	struct dv_cq cq_made;
	void *inbox_memory; /* memory of both rings of the inbox */
	void *heads_handle; /* the struct dv_mr of head[] */

	/* owner: poll core; everything below, too, except head[]. live[i]: request[i] was taken and
	 * is not answered yet */
	alignas(64) bool live[RAIL_REQUESTS];
	bool run_live[RAIL_RUNS]; /* the same for run[i] */
	struct list conns;        /* list of all connections of the rail, oldest first */
	bool lost; /* true: RAIL_LOST was received, so no new connection is accepted */
	/* bit per channel that got completions since the last rail_wake() */
	uint64_t wake[CHANNELS_MAX / 64];
	/* ids of the channels with completions that are not published yet */
	uint16_t fresh[CHANNELS_MAX];
	/* ids of the open channels, in the order in which rail_take() serves them */
	uint16_t turn[CHANNELS_MAX];
	/* the channels that the rail has, by channel id */
	struct channel_slot channel[CHANNELS_MAX];
	/* what the rail knows of each peer, by map_member.peer: see peer_slot_of() */
	struct peer_slot peer[NODES_MAX];
	/* destination regions of clients, by region number */
	struct region_slot region[REGIONS_MAX];
	/* lkeys of a region's extents, by region number; memory of the control plane, valid
	 * until RAIL_REGION_RETURNED */
	const uint32_t *extent_lkey[REGIONS_MAX];
	uint16_t request_stack[RAIL_REQUESTS]; /* numbers of the free requests */
	uint16_t block_stack[REQUEST_BLOCKS];  /* numbers of the free segment blocks */
	/* number of the segment block that follows block i in its request */
	uint16_t block_next[REQUEST_BLOCKS];
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
	struct request request[RAIL_REQUESTS];
	/* by request, if its connection has a lease: T0, at or before its first WQE, ns */
	uint64_t request_t0_ns[RAIL_REQUESTS];
	/* segment blocks; block[i] is the first one of request[i] */
	struct op_segments block[REQUEST_BLOCKS];
	struct rail_run run[RAIL_RUNS];
	struct conn conn[RAIL_CONNECTIONS_MAX];
	/* owner: the NIC, from the post of a READ of page heads to its CQE; otherwise the poll
	 * core. The heads of a READ go to the RAIL_HEADS_SPAN entries from first->number *
	 * RAIL_HEADS_SPAN on, where `first` is the READ's first request; those of a READ for a
	 * run to a block from RAIL_LANDINGS_AT on, or to the place of that run. */
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

	if (unlikely(!slot->parked.next)) {
		list_init(&slot->parked);
		list_init(&slot->parked_runs);
	}
	return slot;
}

static inline uint64_t rail_now(struct rail *rail)
{
	if (!rail->now_ns)
		rail->now_ns = clock_now_ns();
	return rail->now_ns;
}

/* ---- leases: see abi/lease.h ---- */

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

/* ---- live requests: taken and not answered yet ---- */

/*
 * The first live request whose number is at least `number`; NULL: none. A loop over live requests
 * may end requests: ended ones are skipped.
 */
static inline struct request *request_live_from(struct rail *rail, unsigned number)
{
	while (number < RAIL_REQUESTS && !rail->live[number])
		number++;
	return number < RAIL_REQUESTS ? &rail->request[number] : NULL;
}

/* The same for runs. */
static inline struct rail_run *run_live_from(struct rail *rail, unsigned number)
{
	while (number < RAIL_RUNS && !rail->run_live[number])
		number++;
	return number < RAIL_RUNS ? &rail->run[number] : NULL;
}

/* The heads at which a READ with this landing block arrives: RUN_HEADS_SPAN of them. */
static inline struct page_head *run_landing(struct rail *rail, uint16_t block)
{
	return &rail->head[RAIL_LANDINGS_AT + block * RUN_HEADS_SPAN];
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

/* Takes a free request and resets it. The caller has checked that requests_free is not 0. */
static inline struct request *request_new(struct rail *rail)
{
	struct request *request = &rail->request[rail->request_stack[--rail->requests_free]];

	request->conn = NULL;
	list_init(&request->pending);
	request->posted = 0;
	request->outstanding = 0;
	request->stage = REQUEST_PAYLOAD;
	request->status = OP_HIT;
	request->counted = false;
	request->expired = false;
	request->leased = false;
	return request;
}

/*
 * Share of one connection: it may hold half as many requests as are free. One connection alone can
 * hold a third of all requests, and n connections that make no progress leave (2/3)^n of them to
 * the others. Less than a third keeps a connection's QPs busy, because it posts at most CQ_DEPTH /
 * 2 WQEs at a time.
 */
/* with at least this many free requests no connection can hold more than its share */
#define RAIL_REQUESTS_PLENTY (RAIL_REQUESTS - RAIL_REQUESTS / 3)
static_assert(RAIL_REQUESTS / 3 > CQ_DEPTH, "the share of a connection keeps its QPs busy");

static inline bool conn_full(const struct rail *rail, const struct conn *conn)
{
	return 2 * conn->requests > rail->requests_free;
}

/* Queues a request that has WQEs to post at its connection, and the connection at the rail. */
static inline void conn_queue(struct rail *rail, struct conn *conn, struct request *request)
{
	list_append(
		request->stage == REQUEST_HEAD ? &conn->heads : &conn->pending, &request->pending);
	if (!list_linked(&conn->waiting))
		list_append(&rail->waiting, &conn->waiting);
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
/* Returns a channel that is being stopped to the control plane if it has no request in flight. */
void channel_return_if_idle(struct rail *rail, struct rail_channel *channel);
/* Sends RAIL_REGION_RETURNED for a region that is being dropped if no request uses it. */
void region_return_if_unused(struct rail *rail, uint32_t id);
/* After RAIL_STOP: sends RAIL_STOPPED once no request, connection, command or event is left. */
void rail_finish(struct rail *rail);

/* ---- what runs and requests have in common ---- */
/* Ends a request's or run's use of a region. */
static inline void region_release(struct rail *rail, uint32_t id)
{
	if (--rail->region[id].users == 0 && unlikely(rail->region[id].dropping))
		region_return_if_unused(rail, id);
}

/*
 * Writes a completion, a struct op_done or run_done, to the channel's done ring; the step publishes
 * it at its end. The ring has room, because an op is taken only if its completion fits.
 */
static inline void channel_answer(struct rail *rail, struct channel_slot *slot, const void *done)
{
	struct rail_channel *channel = slot->channel;

	if (likely(!channel->stopping && !channel->broken)) {
		memcpy(ring_slot_new(&channel->done, slot->fresh), done, sizeof(struct op_done));
		if (!slot->fresh++)
			rail->fresh[rail->fresh_count++] = (uint16_t)channel->id;
	}
	channel->in_flight--;
}

/* ---- request.c: single ops ---- */
/* Takes ops from all clients' op rings, runs and single ops. Returns the number of ops taken. */
unsigned rail_take(struct rail *rail);
/*
 * Routes a taken request: to the connection of its peer, to the list of requests that wait for one,
 * or back to the client with OP_PEER_DOWN or OP_INVALID.
 */
void request_route(struct rail *rail, struct request *request);
/*
 * Post up to `burst` WQEs of the connection's requests: payload, and with a lease the page head
 * behind it; page heads whose payload has arrived. Return how many.
 */
unsigned requests_post(struct rail *rail, struct conn *conn, unsigned burst);
unsigned requests_post_heads(struct rail *rail, struct conn *conn, unsigned burst);
/* Answers the request with `status` and frees it. None of its WQEs may be at the NIC. */
void request_end(struct rail *rail, struct request *request, enum op_status status);

/* ---- run.c: runs, the way of most pages ---- */
/*
 * Takes the run whose first line is `at` entries after the head of the op ring; `first` is the copy
 * of that line, and `ready` entries from there on are filled. Returns the number of entries it
 * occupies and the number of its pages; 0: it stays in the ring. Six parameters, in registers: hot
 * path.
 */
uint32_t run_take(struct rail *rail, struct rail_channel *channel, const struct run_line *first,
	uint32_t at, uint32_t ready, uint32_t *ret_pages);
/* Routes a taken run, as request_route() does a request. */
void run_route(struct rail *rail, struct rail_run *run);
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

/* ---- run_post.c ---- */
/* Queues a run that has payload to post at its connection, and the connection at the rail. */
void run_queue(struct rail *rail, struct conn *conn, struct rail_run *run);
/*
 * Post up to `burst` WQEs of the connection's runs: payload, lot by lot; page heads whose payload
 * has arrived. Return how many.
 */
unsigned runs_post(struct rail *rail, struct conn *conn, unsigned burst);
unsigned runs_post_heads(struct rail *rail, struct conn *conn, unsigned burst);

#endif
