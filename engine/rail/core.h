/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct rail: everything one rail owns, and what the files of this folder call of each other.
 * One mapping, made by rail_open(); nothing is allocated after that. Poll core only, apart from the
 * control plane's ends of the inbox and the two words other threads may read.
 */
#ifndef RAIL_CORE_H
#define RAIL_CORE_H

#include "dv/hot.h"
#include "engine/abi/probe.h"
#include "engine/rail/peer.h"
#include "engine/rail/rail.h"
#include "engine/rail/request.h"
#include "numa/clock.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define container_of(at, type, member) ((type *)(void *)((char *)(at)-offsetof(type, member)))

#define RAIL_POST_BURST 512u  /* WQEs written in one step */
#define RAIL_OBEY_BURST 64u   /* commands carried out in one step */
#define RAIL_CLOCK_STEPS 64u  /* busy steps between two looks at the deadlines */
#define RAIL_IDLE_STEPS 1024u /* idle steps counted at once */
#define RAIL_STOP_STEPS                                                                            \
	(OP_RING_SLOTS / RAIL_TAKE_BURST + 1) /* empty any ring as it was at STOP  \
							       */
#define RAIL_PARKED_MAX                                                                            \
	(RAIL_REQUESTS / 2) /* a peer that never comes leaves room for the others  \
					     */
/* Every object has at most this many events unheard: peers 5, channels 2, regions 1. */
#define RAIL_EVENTS_LATE 8192u
static_assert(RAIL_EVENTS_LATE > 5 * LANES_MAX + NODES_MAX + 2 * CHANNELS_MAX + REGIONS_MAX + 1,
	"no event is ever lost");
static_assert((RAIL_EVENTS_LATE & (RAIL_EVENTS_LATE - 1)) == 0, "indices are masked");
static_assert(CQ_DEPTH >= RAIL_POST_BURST, "a step's WQEs have room for their CQEs");

/* A destination region, with how many segments of live requests name it. */
struct region_slot {
	uint64_t base;
	uint64_t length;
	uint32_t lkey;
	uint32_t session; /* 0: not there, or being dropped: no session has that number */
	uint32_t users;
	uint8_t extent_shift; /* 0: one MR; else see rail->extent_lkey */
	bool present;
	bool dropping;
};
static_assert(sizeof(struct region_slot) == 32, "two to a cache line");

struct channel_slot {
	struct rail_channel *channel; /* NULL: none */
	uint32_t fresh;               /* completions written and not yet published */
	uint32_t turn;                /* where it stands in rail->turn */
};

struct rail {
	/* owner: poll core; touched every step */
	alignas(64) struct dv_cq cq;
	/* owner: poll core; touched every step */
	alignas(64) struct lane_qp *unrung; /* QPs with WQEs the device has not been told of */
	struct link waiting;                /* lanes with pending requests */
	uint32_t wqes;         /* outstanding on all QPs: never more than the CQ can take */
	uint32_t posted_bytes; /* payload outstanding on lanes that move */
	uint64_t taken_bytes;  /* of requests on lanes that move */
	uint32_t channels;     /* in turn[] */
	uint32_t first;        /* whose turn it is */
	bool blocked;          /* a ring had ops that could not be taken in this step */
	bool stopping;
	bool stopped;
	bool spoke;    /* events since the control plane was last kicked */
	bool answered; /* completions in this step: rail_answer() */
	bool news;     /* completions or events since rail_wake() */
	uint32_t steps;
	/* owner: poll core; touched every step that moves something */
	alignas(64) uint64_t now_ns; /* of this turn; 0: the clock was not read yet */
	uint64_t nearest_ns;         /* no live request has an earlier deadline */
	uint64_t steps_idle;         /* not yet in counter[] */
	uint32_t requests_free;
	uint32_t blocks_free;
	uint32_t lanes_free;
	uint32_t parked;               /* requests without a lane, or on one that is stalled */
	uint32_t late_head, late_tail; /* events that found the ring full */
	uint32_t stop_steps;           /* since RAIL_STOP */
	uint64_t watch_ns;             /* when lanes_watch() is due */
	uint64_t watched_ns;           /* when it was last done */
	/* READ latency is sampled, one WQE at a time: see read_time_start() */
	struct lane_qp *timed; /* its queue pair; NULL: none is timed */
	uint32_t timed_end;    /* it retires when sq->ci reaches this */
	uint64_t timed_ns;     /* when its doorbell was rung */
	/* owner: poll core; any thread reads it */
	alignas(64) uint32_t in_flight;
	/* owner: poll core; any thread reads them */
	alignas(64) uint64_t counter[COUNTER_COUNT];
	uint64_t latency[LATENCY_BUCKETS];
	uint64_t latency_ns_sum;
	/* owner: poll core; the two middle members are its ends, the outer two the control plane's
	 */
	alignas(64) struct inbox inbox;
	/* read-only once the core runs */
	alignas(64) struct rail_options options;
	uint32_t heads_lkey;
	bool device_steps;    /* the software NIC runs in this thread */
	bool started;         /* a poll core has it */
	struct dv_cq cq_made; /* as it was created; `cq` is another one once the NIC is lost */
	void *inbox_memory;
	void *heads_handle;

	/* owner: poll core; all below */
	alignas(64) bool live[RAIL_REQUESTS]; /* which requests are under way */
	struct link lanes;
	bool lost;                         /* its NIC is: no lane is taken any more */
	uint64_t wake[CHANNELS_MAX / 64];  /* channels that got completions since rail_wake() */
	uint64_t fresh[CHANNELS_MAX / 64]; /* channels with completions to publish */
	uint16_t turn[CHANNELS_MAX];
	struct channel_slot channel[CHANNELS_MAX];
	struct peer_slot peer[NODES_MAX];
	struct region_slot region[REGIONS_MAX];
	const uint32_t *extent_lkey[REGIONS_MAX]; /* the control plane's, while the rail has it */
	uint16_t request_stack[RAIL_REQUESTS];
	uint16_t block_stack[REQUEST_BLOCKS];
	uint16_t block_next[REQUEST_BLOCKS];
	uint16_t lane_stack[LANES_MAX];
	struct {
		uint32_t qpn;
		uint16_t used;
		uint16_t qp; /* lane * QPS_PER_PEER_MAX + which */
	} table[LANE_TABLE_SLOTS];
	struct rail_event late[RAIL_EVENTS_LATE];
	struct request request[RAIL_REQUESTS];
	struct op_segments block[REQUEST_BLOCKS];
	struct lane lane[LANES_MAX];
	/* owner: the NIC, from the post of a READ of heads to its CQE; a span for each request that
	 * can be its first */
	alignas(4096) struct page_head head[RAIL_REQUESTS * RAIL_HEADS_SPAN];
};
static_assert(offsetof(struct rail, unrung) == 64, "the CQ has its line");
static_assert(offsetof(struct rail, now_ns) == 128, "the line of every step is one");
static_assert(offsetof(struct rail, in_flight) % 64 == 0, "readers disturb one line");
static_assert(offsetof(struct rail, head) % 4096 == 0, "heads never straddle a cache line");

static inline uint64_t rail_now(struct rail *rail)
{
	if (!rail->now_ns)
		rail->now_ns = clock_now_ns();
	return rail->now_ns;
}

/* ---- requests under way: from the take, when nothing was wrong with it, to the answer ---- */

/* The first one from that number on; NULL: there is none. Those that end meanwhile are left out. */
static inline struct request *live_from(struct rail *rail, unsigned number)
{
	while (number < RAIL_REQUESTS && !rail->live[number])
		number++;
	return number < RAIL_REQUESTS ? &rail->request[number] : NULL;
}

/* A free slot, emptied; there is one. */
static inline struct request *request_new(struct rail *rail)
{
	struct request *request = &rail->request[rail->request_stack[--rail->requests_free]];

	request->lane = NULL;
	link_init(&request->pending);
	request->posted = 0;
	request->outstanding = 0;
	request->stage = REQUEST_PAYLOAD;
	request->status = OP_HIT;
	request->counted = false;
	request->expired = false;
	return request;
}

/*
 * A lane may hold half as many requests as are free: one lane a third of all, and n lanes that do
 * not move leave (2/3)^n of them to the others. A lane needs less than its third to keep its queue
 * pairs busy: it posts at most CQ_DEPTH / 2 WQEs at a time.
 */
#define RAIL_REQUESTS_PLENTY (RAIL_REQUESTS - RAIL_REQUESTS / 3) /* free: then no lane is full */
static_assert(RAIL_REQUESTS / 3 > CQ_DEPTH, "the share of a lane keeps its queue pairs busy");

static inline bool lane_full(const struct rail *rail, const struct lane *lane)
{
	return 2 * lane->requests > rail->requests_free;
}

/* Queues a request that has something to post. */
static inline void lane_queue(struct rail *rail, struct lane *lane, struct request *request)
{
	link_append(
		request->stage == REQUEST_HEAD ? &lane->heads : &lane->pending, &request->pending);
	if (!link_linked(&lane->waiting))
		link_append(&rail->waiting, &lane->waiting);
}

static inline void rail_count(struct rail *rail, enum counter which, uint64_t n)
{
	shm_count(&rail->counter[which], n);
}

/* step.c */
/*
 * What a step looks at first, on its way while another rail is stepped: the next CQE, and the op
 * that the client's core may just have written.
 */
static inline void rail_expect(const struct rail *rail)
{
	const struct dv_cq *cq = &rail->cq;

	__builtin_prefetch(cq->buf + ((size_t)(cq->ci & (cq->cqe_cnt - 1)) + 1) * cq->cqe_size - 1);
	if (rail->channels) {
		const struct ring_consumer *ops = &rail->channel[rail->turn[0]].channel->ops;
		const unsigned char *slot = ring_slot_old(ops, ops->tail_seen - ops->head);

		__builtin_prefetch(slot);
	}
}
void rail_ring(struct rail *rail);
/* Queues an event for the control plane; it is in the ring when the step is over, if there is room.
 */
void rail_say(struct rail *rail, const struct rail_event *event);

/* expire.c: ends what has outlived its deadline. Returns how many requests that touched. */
unsigned rail_expire(struct rail *rail);

/* take.c */
unsigned rail_take(struct rail *rail);

/* post.c */
unsigned rail_post(struct rail *rail);

/* reap.c */
unsigned rail_reap(struct rail *rail);
/* All that is in the CQ now. */
void rail_reap_all(struct rail *rail);
/* All that is posted on it ends as if it had been flushed. The NIC is done with it. */
void lane_retire_posted(struct rail *rail, struct lane *lane);

/* request.c */
/* Copies the segments of its op from the ring, slot `from` on; false: no blocks for them now. */
bool request_copy_segments(
	struct rail *rail, struct request *request, const struct ring_consumer *ops, uint32_t from);
/* Counts the regions it names as used. */
void request_hold_regions(struct rail *rail, struct request *request);
/* Nothing of it is with the NIC: answers, and frees it. */
void request_end(struct rail *rail, struct request *request, enum op_status status);
/* Its slot and the blocks of its op.segments, which were copied, are free again. */
void request_free(struct rail *rail, struct request *request);
/* Publishes the completions of this step. */
void rail_answer(struct rail *rail);

/* lost.c */
/* RAIL_LOST: from here on nothing of the NIC is touched. */
void rail_lose(struct rail *rail);
/* RAIL_PEER_RETIRE */
void lane_retire(struct rail *rail, const struct rail_peer *object);
/* Says once that a lane that ended does not drain. */
void lane_drain_watch(struct rail *rail, struct lane *lane, uint64_t now_ns);

/* obey.c */
unsigned rail_obey(struct rail *rail);
/* Tells the control plane, once; nothing is taken from or written to the channel any more. */
void channel_break(struct rail *rail, struct rail_channel *channel);
/* Gives a stopping channel back when nothing of it is in flight. */
void channel_return_if_idle(struct rail *rail, struct rail_channel *channel);
/* Says that a region that is being dropped has no users any more. */
void region_return_if_unused(struct rail *rail, uint32_t id);
/* After RAIL_STOP: says RAIL_STOPPED when everything is drained. */
void rail_finish(struct rail *rail);

/*
 * wake.c: the only system calls of a running rail, made by the thread between steps, where there is
 * rail->news and after shm_fence_sleep(): what it tells of was published, sleepers raise their
 * flags before they look for it.
 */
void rail_wake(struct rail *rail);

#endif
