/* Follows the text of every unit: runs the blocks of a launch. Behind it stands a line GK_EXPORT(name) per kernel. */
#line 1 "runtime.cpp"
enum { GK_STACK = 128 * 1024 };
static ucontext_t gk_scheduler, gk_items[GK_BLOCK];
static bool gk_ended[GK_BLOCK];
static void (*gk_body)(void**);
static void** gk_arguments;

static void gk_next_item(void)
{
    /* The other items change it; the scheduler sets it when it comes back to this one. */
    int me = gk_now_lid;
    swapcontext(&gk_items[me], &gk_scheduler);
}

static void gk_item(void)
{
    gk_body(gk_arguments);
    gk_ended[gk_now_lid] = true;
}

static void gk_run_block(int items, char* stacks)
{
    for (int i = 0; i < items; i++) {
        getcontext(&gk_items[i]);
        gk_items[i].uc_stack.ss_sp = stacks + (size_t)i * GK_STACK;
        gk_items[i].uc_stack.ss_size = GK_STACK;
        gk_items[i].uc_link = &gk_scheduler;
        makecontext(&gk_items[i], gk_item, 0);
        gk_ended[i] = false;
    }
    for (bool running = true; running;) {
        running = false;
        for (int i = 0; i < items; i++) {
            if (gk_ended[i]) continue;
            gk_now_lid = i;
            swapcontext(&gk_scheduler, &gk_items[i]);
            running |= !gk_ended[i];
        }
    }
}

static int gk_run(void (*body)(void**), void** arguments, const unsigned* grid, int items)
{
    char* stacks = (char*)malloc((size_t)items * GK_STACK);
    if (!stacks || items > GK_BLOCK) return free(stacks), 1;
    gk_body = body;
    gk_arguments = arguments;
    for (int d = 0; d < 3; d++) gk_now_blocks[d] = (int)grid[d];
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                gk_now_bid[0] = (int)x;
                gk_now_bid[1] = (int)y;
                gk_now_bid[2] = (int)z;
                gk_run_block(items, stacks);
            }
    free(stacks);
    return 0;
}

template <class... A, size_t... I> static void gk_apply(void (*f)(A...), void** arguments, std::index_sequence<I...>)
{
    f(*(typename std::remove_cv<A>::type*)arguments[I]...);
}
template <class... A> static void gk_call(void (*f)(A...), void** arguments)
{
    gk_apply(f, arguments, std::index_sequence_for<A...>());
}

#define GK_EXPORT(name)                                                                            \
    extern "C" int gk_launch_##name(void** arguments, const unsigned* grid, int items)             \
    {                                                                                              \
        return gk_run([](void** a) { gk_call(name, a); }, arguments, grid, items);                 \
    }
