(* Programs of thread blocks: reads what verify/asynchronous/kernel_model.py writes, and hands it to
   [Block_checker.decide]. Trusted: that what it hands over is what the text says. *)

open Block_checker
open Fields

let rec positive i =
  if i = 1 then XH else if i land 1 = 0 then XO (positive (i lsr 1)) else XI (positive (i lsr 1))

let rec int_of_positive = function
  | XH -> 1 | XO p -> 2 * int_of_positive p | XI p -> 2 * int_of_positive p + 1

let int_of = function N0 -> 0 | Npos p -> int_of_positive p

(* Equal numbers share one value: a saving, nothing else. *)
let shared : (int, n) Hashtbl.t = Hashtbl.create 1024

let number i =
  match Hashtbl.find_opt shared i with
  | Some v -> v
  | None ->
    let v = if i = 0 then N0 else Npos (positive i) in
    Hashtbl.add shared i v; v

let most = 1 lsl 40

let natural what v = number (in_range what 0 most v)

(* -1: none *)
let optional what v = match in_range what (-1) most v with -1 -> None | i -> Some (number i)

let pair what = function
  | Json.List [c; v] -> (natural what c, number (in_range what 1 most v))
  | _ -> malformed (what ^ " must be [counter, value]")

let step = function
  | Json.List [count; sources; targets; receives; sends; waits; signals] ->
    { count = natural "count" count;
      sources = List.map (natural "a source") (list "sources" sources);
      targets = List.map (natural "a target") (list "targets" targets);
      receives = optional "receives" receives;
      sends = optional "sends" sends;
      waits = List.map (pair "a wait") (list "waits" waits);
      signals = List.map (pair "a signal") (list "signals" signals) }
  | _ -> malformed "a step must be [count, sources, targets, receives, sends, waits, signals]"

let input = function
  | Json.List [address; rank; chunk] ->
    (natural "an address" address, (natural "a rank" rank, natural "a chunk" chunk))
  | _ -> malformed "an input must be [address, rank, chunk]"

(* rank -1: the sum of all *)
let demanded = function
  | Json.List [address; rank; chunk] ->
    let chunk = natural "a chunk" chunk in
    (natural "an address" address,
     match optional "a rank" rank with None -> Of_all chunk | Some r -> Of_one (r, chunk))
  | _ -> malformed "a row of a demand must be [address, rank, chunk]"

let format = Json.String "latecomer-blocks/1"

let is_program = function
  | Json.Object l -> List.assoc_opt "format" l = Some format
  | _ -> false

let judge v =
  let field = fields "the file"
      ["format"; "ranks"; "sizes"; "depth"; "extra"; "overtaking"; "blocks"; "inputs"; "demands"] v in
  let get name = required name (field name) in
  let p =
    { ranks = number (in_range "ranks" 1 65536 (get "ranks"));
      steps = List.map (fun b -> List.map step (list "a block" b)) (list "blocks" (get "blocks"));
      inputs = List.map input (list "inputs" (get "inputs"));
      demands =
        List.map (fun d -> List.map demanded (list "a demand" d)) (list "demands" (get "demands")) } in
  let size v = number (in_range "a size" 1 most v) in
  let sizes = List.map size (list "sizes" (get "sizes")) in
  let depth = optional "depth" (get "depth") in
  let print accepted answer =
    Printf.printf "{\"accepted\":%b,%s}\n" accepted answer; flush stdout in
  let overtaking = in_range "overtaking" 0 1 (get "overtaking") = 1 in
  match decide p sizes depth (natural "extra" (get "extra")) overtaking with
  | Right by_slots -> print true (Printf.sprintf "\"answer\":\"right\",\"by_slots\":%b" by_slots); 0
  | Hanging m -> print false (Printf.sprintf "\"answer\":\"hangs\",\"size\":%d" (int_of m)); 1
  | Wrong m -> print false (Printf.sprintf "\"answer\":\"wrong\",\"size\":%d" (int_of m)); 1
  | Unknown -> print false "\"answer\":\"unknown\""; 2
