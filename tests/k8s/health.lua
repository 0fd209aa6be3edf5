-- What deploy/argocd/health.lua says of some objects: `cargo xtask chart`.
local source = arg[1]

local function condition(kind, status, reason)
  return { type = kind, status = status, reason = reason or "R", message = "why " .. kind }
end

local function object(generation, status)
  return { metadata = { generation = generation }, status = status }
end

local good = { condition("Accepted", "True"), condition("ResolvedRefs", "True"), condition("Programmed", "True") }
local function with(...)
  local conditions = {}
  for _, c in ipairs(good) do table.insert(conditions, c) end
  for _, c in ipairs({ ... }) do table.insert(conditions, c) end
  return { observedGeneration = 2, pods = "3/4", conditions = conditions }
end

local cases = {
  { "no status", object(1, nil), "Progressing", "no gateway has reported yet" },
  { "another generation", object(3, with(condition("Ready", "True"))), "Progressing", "no gateway has seen" },
  { "refused", object(2, { observedGeneration = 2, conditions = { condition("Accepted", "False"), condition("Ready", "False") } }),
    "Degraded", "Accepted: why Accepted" },
  { "a pool left out", object(2, with(condition("ResolvedRefs", "False"))), "Degraded", "why ResolvedRefs" },
  { "not in force", object(2, with(condition("Programmed", "False"), condition("Ready", "True"))), "Degraded", "why Programmed" },
  { "waiting", object(2, with(condition("Programmed", "False", "NeedsTakeover"))), "Suspended", "why Programmed" },
  { "without pods", object(2, with(condition("Ready", "False"))), "Progressing", "why Ready" },
  { "well", object(2, with(condition("Ready", "True"))), "Healthy", "3/4 pods" },
}

local failed = 0
for _, case in ipairs(cases) do
  local name, object_, status, message = unpack(case)
  obj = object_
  local said = assert(loadfile(source))()
  if said.status ~= status or not said.message:find(message, 1, true) then
    failed = failed + 1
    io.stderr:write(name .. ": " .. said.status .. ": " .. said.message .. "\n")
  end
end
print(#cases .. " cases, " .. failed .. " failed")
os.exit(failed == 0 and 0 or 1)
