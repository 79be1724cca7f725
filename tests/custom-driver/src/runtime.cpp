/* Follows the text of every unit: runs the blocks of a launch. Behind it stands a line HOST_EXPORT(name) per kernel. */
#line 1 "runtime.cpp"
enum { HOST_STACK = 128 * 1024 };
static ucontext_t host_scheduler, host_items[GK_BLOCK];
static bool host_ended[GK_BLOCK];
static void (*host_body)(void**);
static void** host_arguments;

static void host_next_item(void)
{
    /* The other items change it; the scheduler sets it when it comes back to this one. */
    int me = host_now_lid;
    swapcontext(&host_items[me], &host_scheduler);
}

static void host_item(void)
{
    host_body(host_arguments);
    host_ended[host_now_lid] = true;
}

static void host_run_block(int items, char* stacks)
{
    for (int i = 0; i < items; i++) {
        getcontext(&host_items[i]);
        host_items[i].uc_stack.ss_sp = stacks + (size_t)i * HOST_STACK;
        host_items[i].uc_stack.ss_size = HOST_STACK;
        host_items[i].uc_link = &host_scheduler;
        makecontext(&host_items[i], host_item, 0);
        host_ended[i] = false;
    }
    for (bool running = true; running;) {
        running = false;
        for (int i = 0; i < items; i++) {
            if (host_ended[i]) continue;
            host_now_lid = i;
            swapcontext(&host_scheduler, &host_items[i]);
            running |= !host_ended[i];
        }
    }
}

static int host_run(void (*body)(void**), void** arguments, const unsigned* grid, int items)
{
    char* stacks = (char*)malloc((size_t)items * HOST_STACK);
    if (!stacks || items > GK_BLOCK) return free(stacks), 1;
    host_body = body;
    host_arguments = arguments;
    for (int d = 0; d < 3; d++) host_now_blocks[d] = (int)grid[d];
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                host_now_bid[0] = (int)x;
                host_now_bid[1] = (int)y;
                host_now_bid[2] = (int)z;
                host_run_block(items, stacks);
            }
    free(stacks);
    return 0;
}

template <class... A, size_t... I> static void host_apply(void (*f)(A...), void** arguments, std::index_sequence<I...>)
{
    f(*(typename std::remove_cv<A>::type*)arguments[I]...);
}
template <class... A> static void host_call(void (*f)(A...), void** arguments)
{
    host_apply(f, arguments, std::index_sequence_for<A...>());
}

#define HOST_EXPORT(name)                                                                            \
    extern "C" int gk_launch_##name(void** arguments, const unsigned* grid, int items)             \
    {                                                                                              \
        return host_run([](void** a) { host_call(name, a); }, arguments, grid, items);                 \
    }
