/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that test_assembly.py disassembles: each calls one inline function of a header.
 * Never run.
 */
#include "dv/hot.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/page.h"
#include "engine/abi/statistics.h"

void order_ring_publish(struct ring_producer *p, uint32_t n);
void order_ring_publish(struct ring_producer *p, uint32_t n)
{
	ring_publish(p, n);
}

int32_t order_ring_look(struct ring_consumer *c, uint32_t most);
int32_t order_ring_look(struct ring_consumer *c, uint32_t most)
{
	return ring_look(c, most);
}

int32_t order_ring_ready_now(struct ring_consumer *c);
int32_t order_ring_ready_now(struct ring_consumer *c)
{
	return ring_ready_now(c);
}

void order_ring_release(struct ring_consumer *c, uint32_t n);
void order_ring_release(struct ring_consumer *c, uint32_t n)
{
	ring_release(c, n);
}

int32_t order_ring_room(struct ring_producer *p, uint32_t want);
int32_t order_ring_room(struct ring_producer *p, uint32_t want)
{
	return ring_room(p, want);
}

uint32_t order_page_head_retire(struct page_head *shared);
uint32_t order_page_head_retire(struct page_head *shared)
{
	return page_head_retire(shared);
}

uint32_t order_page_head_length(
	const struct page_head *shared, const struct page_key *key, uint32_t generation);
uint32_t order_page_head_length(
	const struct page_head *shared, const struct page_key *key, uint32_t generation)
{
	return page_head_length(shared, key, generation);
}

void order_page_head_publish(struct page_head *shared, const struct page_key *key, uint32_t length);
void order_page_head_publish(struct page_head *shared, const struct page_key *key, uint32_t length)
{
	page_head_publish(shared, key, length);
}

void order_statistics_write(struct channel_statistics *s, uint64_t n);
void order_statistics_write(struct channel_statistics *s, uint64_t n)
{
	statistics_write_begin(s);
	shm_count(&s->words.get_bytes, n);
	statistics_write_end(s);
}

int order_statistics_read(const struct channel_statistics *s, struct statistics_words *ret_words);
int order_statistics_read(const struct channel_statistics *s, struct statistics_words *ret_words)
{
	return statistics_read(s, ret_words);
}

void order_bucket_load(const struct bucket *shared, struct bucket *ret_bucket);
void order_bucket_load(const struct bucket *shared, struct bucket *ret_bucket)
{
	*ret_bucket = bucket_load(shared);
}

bool order_map_owners_load(
	const struct map_shared *shared, uint32_t slot, struct map_owners *ret_owners);
bool order_map_owners_load(
	const struct map_shared *shared, uint32_t slot, struct map_owners *ret_owners)
{
	return map_owners_load(shared, slot, ret_owners);
}

uint32_t order_shm_exchange(uint32_t *word, uint32_t value);
uint32_t order_shm_exchange(uint32_t *word, uint32_t value)
{
	return shm_exchange(word, value);
}

void order_shm_fence_clock(void);
void order_shm_fence_clock(void)
{
	shm_fence_clock();
}

void order_shm_fence_lease(void);
void order_shm_fence_lease(void)
{
	shm_fence_lease();
}

void order_dv_ring(struct dv_sq *sq);
void order_dv_ring(struct dv_sq *sq)
{
	dv_ring(sq);
}

unsigned order_dv_poll(struct dv_cq *cq, struct dv_completion *ret, unsigned max);
unsigned order_dv_poll(struct dv_cq *cq, struct dv_completion *ret, unsigned max)
{
	return dv_poll(cq, ret, max);
}
