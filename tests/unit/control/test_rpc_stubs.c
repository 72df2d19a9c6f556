/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stubs for rails, NICs and evict.c, declared in test_rpc_nodes.h. Helper threads call the stubs
 * of the driver as well.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/control/clients/clients.h"
#include "engine/control/pages/pages.h"
#include "tests/unit/control/copies_stub.h"
#include "tests/unit/control/no_clients.h"
#include "tests/unit/control/tier_stub.h"

static unsigned counts[STUB_CALLS];
int qp_create_status, qp_connect_status, qp_error_status, qp_kill_status, cut_status;
uint64_t ack_ns;
unsigned connects_blocked, connects_free, connects_held;
unsigned regions_retried;
int event_fd = -1, event_status;
uint64_t port_bits_per_second;
int port_look_status;
bool nics_come_back;
int reopen_status, nic_open_status, renew_left;
unsigned sessions_lent;
uint32_t qps_stale_to;

static void count(unsigned *what, unsigned by)
{
	__atomic_fetch_add(what, by, __ATOMIC_SEQ_CST);
}

unsigned stub_count(enum stub_call which)
{
	return __atomic_load_n(&counts[which], __ATOMIC_SEQ_CST);
}

void stub_counts_clear(void)
{
	for (unsigned i = QPS_CONNECTS; i < STUB_CALLS; i++)
		__atomic_store_n(&counts[i], 0, __ATOMIC_SEQ_CST);
}

struct dv_qp {
	uint32_t number;
	struct fake_rail *rail;
};

struct dv_cq *rail_cq(struct rail *rail)
{
	return (struct dv_cq *)rail;
}

bool rail_command_send(struct rail *rail, const struct rail_command *command)
{
	struct fake_rail *fake = (struct fake_rail *)rail;

	if (fake->full)
		return false;
	if (fake->tells < TOLD_MAX)
		fake->told[fake->tells++] = *command;
	return true;
}

void rail_counters(const struct rail *rail, uint64_t ret_counters[COUNTER_COUNT])
{
	memcpy(ret_counters, ((const struct fake_rail *)rail)->counter,
		COUNTER_COUNT * sizeof(*ret_counters));
}

uint32_t rail_in_flight(const struct rail *rail)
{
	return ((const struct fake_rail *)rail)->in_flight;
}

uint32_t rail_stalls(const struct rail *rail)
{
	return ((const struct fake_rail *)rail)->stalls;
}

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	*ret = (struct dv_attributes){
		.bits_per_second = port_bits_per_second, .hardware = nics_come_back};
}

int dv_port_look(struct dv_device *device)
{
	count(&counts[PORT_LOOKS], 1);
	return __atomic_load_n(&port_look_status, __ATOMIC_SEQ_CST);
}

bool dv_qp_stale(const struct dv_qp *qp)
{
	return qp->number <= __atomic_load_n(&qps_stale_to, __ATOMIC_SEQ_CST);
}

int dv_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq)
{
	static uint32_t number;

	if (qp_create_status)
		return qp_create_status;
	*ret_qp = calloc(1, sizeof(**ret_qp));
	(*ret_qp)->number = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
	(*ret_qp)->rail = (struct fake_rail *)cq;
	*ret_sq = (struct dv_sq *)cq;
	count(&counts[QPS_ALIVE], 1);
	return 0;
}

void dv_qp_address(const struct dv_qp *qp, struct dv_address *ret_address)
{
	*ret_address = (struct dv_address){.version = 1, .kind = 3, .qpn = qp->number};
}

uint32_t dv_qp_number(const struct dv_qp *qp)
{
	return qp->number;
}

int dv_qp_connect(struct dv_qp *qp, const struct dv_address *remote)
{
	count(&counts[QPS_CONNECTS], 1);
	if (__atomic_load_n(&connects_free, __ATOMIC_SEQ_CST))
		count(&connects_free, -1u);
	else if (__atomic_load_n(&connects_held, __ATOMIC_SEQ_CST) &&
		 __atomic_fetch_sub(&connects_held, 1, __ATOMIC_SEQ_CST)) {
		count(&qp->rail->blocked, 1);
		while (__atomic_load_n(&connects_blocked, __ATOMIC_SEQ_CST))
			/*
			 * blocks the helper thread, as the kernel does while it resolves a
			 * neighbour
			 */
			usleep(1000);
		count(&qp->rail->blocked, -1u);
	}
	return remote->version != 1 ? -EPROTO : qp_connect_status;
}

uint64_t dv_qp_ack_ns(const struct dv_qp *qp)
{
	return ack_ns;
}

int dv_qp_error(struct dv_qp *qp)
{
	count(&counts[QPS_ERRORS], 1);
	return qp_error_status;
}

int dv_qp_kill(struct dv_qp *qp)
{
	count(&counts[QPS_KILLS], 1);
	return qp_kill_status;
}

void dv_qp_destroy(struct dv_qp *qp)
{
	count(&counts[QPS_ALIVE], -1u);
	free(qp);
}

int dv_cut(struct dv_device *device)
{
	count(&counts[CUTS], 1);
	return cut_status;
}

int dv_reopen(struct dv_device *device)
{
	count(&counts[REOPENS], 1);
	return __atomic_load_n(&reopen_status, __ATOMIC_SEQ_CST);
}

int dv_mr_register(struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	*ret_mr = (struct dv_mr){.base = memory->base, .length = memory->length, .rkey = 4711};
	return 0;
}

int rail_nic_open(struct rail *rail)
{
	return __atomic_load_n(&nic_open_status, __ATOMIC_SEQ_CST);
}

void rail_nic_close(struct rail *rail)
{
	count(&counts[NIC_CLOSES], 1);
}

unsigned clients_lent(const struct control *control)
{
	return sessions_lent;
}

int client_memory_renew(struct control *control, unsigned rail, char *why, size_t bytes)
{
	(void)control, (void)rail;
	if (renew_left < 0)
		snprintf(why, bytes, "a client's memory cannot be registered");
	return renew_left;
}

int dv_event_fd(struct dv_device *device)
{
	return event_fd;
}

int dv_event_next(struct dv_device *device, struct dv_event *ret_event)
{
	(void)device, (void)ret_event;
	count(&counts[EVENT_READS], 1);
	return event_status;
}

uint64_t gap_bucket_ns(unsigned bucket)
{
	return bucket;
}

const char *dv_error(void)
{
	return "a stub said no";
}

const char *dv_syndrome(uint8_t syndrome)
{
	return syndrome ? "some syndrome" : "none";
}

void client_memory_release_held(struct control *control)
{
	regions_retried++;
}

static bool tier_stub_opens(const struct control *control)
{
	return ((const struct node *)control)->disk_opens;
}

static const struct disk_page *tier_stub_pages(const struct control *control, unsigned *ret_count)
{
	const struct node *n = (const struct node *)control;

	*ret_count = n->disk_pages;
	return n->disk;
}

void page_touched(struct control *control, uint32_t place)
{
	struct node *n = (struct node *)control;

	n->touches++;
	n->touched = place;
}

void page_again(struct control *control, const struct location *at, enum evicted from)
{
	struct node *n = (struct node *)control;

	n->again_place[n->agains % 8] = at->place;
	n->again_from[n->agains++ % 8] = from;
}

void scrub_reported(struct control *control, const struct page_report *report)
{
	struct node *n = (struct node *)control;

	n->reports++;
	n->reported = *report;
}

bool page_forget(struct control *control, const struct page_key *key)
{
	return index_remove(control->index, key);
}

bool tier_forget(struct control *control, const struct page_key *key)
{
	(void)control, (void)key;
	return false;
}

bool tier_forgets_many(const struct control *control)
{
	return false;
}

int warm_epochs_open(
	struct control *control, size_t bytes, struct huge *ret_memory, bool *ret_adopted)
{
	*ret_adopted = false;
	return huge_open("epochs", bytes, -1, false, ret_memory);
}

void warm_counts(const struct control *control, struct warm_counts *ret)
{
	*ret = (struct warm_counts){.adopted = ((const struct node *)control)->keep_ref != 0};
}
